"""What `vitals run` costs beside `watch()`: the same training, in processes that take turns.

    python bench/launch.py [--models tiny,deep,wide] [--rounds 20] [--steps 20] [--json FILE]

- Four processes run bench/launched.py: bare, bare again, with `watch()` in the script, and under
  `vitals run`. All stay alive; one trains at a time. In each round each trains `--steps` steps (a
  multiple of 10: as many are monitored in each), in random order.
- A step costs nine tenths of a step that is not monitored and a tenth of one that is (for bare
  processes at the same places), each the lower quartile of all rounds: other work on the machine
  only makes steps longer. A ratio's 95 % interval is a bootstrap over rounds. "bare again / bare"
  is the method's own error.
- "wall" is the clock; "thread" the CPU time of the training thread, which sees less of who else
  uses the machine; "process" that of all threads, which sees what a monitor does beside the
  training, too: it is no quartile but the whole.
- Losses must be the same in all four, bit for bit, and both runs must hold every step due.
- "tiny" has next to no step of its own: what `vitals run` does more than `watch()` does not depend
  on the model's size, and its microseconds are seen there.
Limit: `vitals run` / `watch()` at most 1.02 of wall and thread time of "deep" and "wide", and at
most 100 µs more in "tiny". A limit within the interval is "unclear", not passed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 1.02
LIMIT_S = 100e-6
"""Most that a step of "tiny" may take longer."""
EVERY = 10
"""watch()'s default."""
KINDS = ("wall", "thread", "process")
SCRIPT = str(Path(__file__).parent / "launched.py")
VITALS = str(Path(sys.executable).parent / "vitals")
BARE, AGAIN, WATCH, RUN = "bare", "bare again", "watch()", "vitals run"
Segment = dict[str, Any]
"""What bench/launched.py says of one segment."""
PAIRS = ((AGAIN, BARE), (WATCH, BARE), (RUN, BARE), (RUN, WATCH))


class Process:
    """One training, which steps when it is told to."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def steps(self, num: int) -> Segment:
        """Train so many, and what that took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{num}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(self._process.communicate()[1])
        found: Segment = json.loads(answer)
        return found

    def close(self) -> str:
        """End of input; what it said on stderr."""
        return self._process.communicate()[1]


@dataclass(frozen=True, slots=True)
class Ratio:
    """One variant over another, of one kind of time."""

    over: str
    under: str
    what: str
    value: float
    low: float
    high: float

    def verdict(self, limit: float) -> str:
        """Whether the limit holds, for the pair that has one."""
        if (self.over, self.under) != (RUN, WATCH) or self.what == "process":
            return ""
        says = "pass" if self.value <= limit else "FAIL"
        return f"unclear ({says})" if self.low <= limit <= self.high else says


def cost(segments: Sequence[Segment], what: str) -> float:
    """Seconds a step."""
    if what == "process":
        num_steps = sum(len(one["wall_s"]) for one in segments)
        return float(sum(one["process_s"] for one in segments) / num_steps)
    steps = np.array([one[f"{what}_s"] for one in segments])
    monitored = np.arange(1, steps.shape[1] + 1) % EVERY == 0
    plain, seen = (np.percentile(steps[:, where], 25) for where in (~monitored, monitored))
    return float(((EVERY - 1) * plain + seen) / EVERY)


def ratio(over: list[Segment], under: list[Segment], what: str) -> tuple[float, float, float]:
    """Of two variants' costs, and its 95 % interval."""
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(1000):
        rounds = generator.integers(len(over), size=len(over))
        drawn.append(cost([over[k] for k in rounds], what) / cost([under[k] for k in rounds], what))
    low, high = np.percentile(drawn, [2.5, 97.5])
    return cost(over, what) / cost(under, what), float(low), float(high)


def measure(model: str, rounds: int, steps: int) -> dict[str, list[Segment]]:
    """Every variant's segments, round by round; the first one of each, a warm-up, is dropped."""
    found: dict[str, list[Segment]] = {name: [] for name in (BARE, AGAIN, WATCH, RUN)}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        script = [SCRIPT, model]
        commands = {
            BARE: [sys.executable, *script],
            AGAIN: [sys.executable, *script],
            WATCH: [sys.executable, *script, "--watch", f"{folder}/watch"],
            RUN: [VITALS, "run", "--run", f"{folder}/run", *script],
        }
        processes = {name: Process(command) for name, command in commands.items()}
        order, shuffled = list(processes), random.Random(0)
        for number in range(rounds + 1):
            shuffled.shuffle(order)
            for name in order:
                segment = processes[name].steps(steps)
                if number:
                    found[name].append(segment)
        for process in processes.values():
            process.close()
        check(folder, steps * (rounds + 1), found)
    return found


def check(folder: str, steps: int, found: dict[str, list[Segment]]) -> None:
    """Both monitors kept every step due, and nobody changed the training."""
    from torchvitals import open_run

    for name in ("watch", "run"):
        with open_run(f"{folder}/{name}") as history:
            assert history.steps("update").tolist() == [1, *range(EVERY, steps + 1, EVERY)], name
            assert len(history.series("loss").steps) == steps, name
    losses = {name: [segment["loss"] for segment in found[name]] for name in found}
    assert all(losses[name] == losses[BARE] for name in losses), losses


def ratios(found: dict[str, list[Segment]]) -> list[Ratio]:
    """All pairs, of all kinds of time."""
    return [
        Ratio(over, under, what, *ratio(found[over], found[under], what))
        for what in KINDS
        for over, under in PAIRS
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="tiny,deep,wide")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="of a segment")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.steps % EVERY:
        parser.error("--steps must be a multiple of 10: as many monitored steps in each segment")
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    kept, failed = {}, False
    for model in args.models.split(","):
        found = kept[model] = measure(model, args.rounds, args.steps)
        print(f"\n{model}: {args.rounds} rounds of {args.steps} steps")
        for name, segments in found.items():
            costs = ", ".join(f"{what} {1e3 * cost(segments, what):.2f}" for what in KINDS)
            print(f"  {name:12} ms a step: {costs}")
        # Of "tiny" the added time counts, not its share of a step that is next to nothing.
        limit = 1 + LIMIT_S / cost(found[WATCH], "thread") if model == "tiny" else LIMIT
        for one in ratios(found):
            print(
                f"  {one.what:7} {one.over} / {one.under}: {one.value:.3f} "
                f"({one.low:.3f} … {one.high:.3f}) {one.verdict(limit)}"
            )
            failed |= one.verdict(limit) == "FAIL"
        for what in KINDS:
            added = 1e6 * (cost(found[RUN], what) - cost(found[WATCH], what))
            print(f"  {what:7} {RUN} - {WATCH}: {added:.0f} µs a step")
    if args.json:
        args.json.write_text(json.dumps(kept))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
