"""What monitoring adds to a training step: torchvitals and its peers, in one process, in pairs.

    python bench/overhead.py [--workloads W1,W3] [--rounds 8] [--quick]
                             [--json FILE] [--markdown FILE]

How the figures are made
- Two copies of the training are kept, same seed. In each round every variant comes up once, in
  random order; it is attached to one copy, drawn anew so that the copies' places in memory favour
  nobody, and closed at the end of its turn: only one monitor is alive at any time.
- Within a turn, short segments of the bare and the monitored copy alternate back to back, and the
  difference of two neighbouring segments, a step, is one sample. The figure is the median of these
  paired differences: slow drift of the machine cancels.
- A turn begins with untimed steps of the monitored copy until a second and a half is over: opening
  a run and writing down the names of thousands of series is done once, not in a step.
- Each segment begins with untimed steps.
- Our writer's thread works about once a second, be it in a bare segment or a watched one. So its
  CPU time is taken out of the segments it falls into, and what it takes a step over five seconds of
  watched steps in a row, at the end of a turn, is added: so it is in a run, where no step is bare.
  A millisecond of it counts as 1.2: it has the training's other thread wait (docs/decisions/0009).
  What peers do beside the training is not known, and stays where it falls.
- A monitor with every=10 is timed in groups of 10 steps: any 10 in a row hold exactly one measured.
  Its sample is made of single steps: the measured ones, and the median of the others, beside the
  median of the bare ones. Sums of ten steps would bury the one that counts in the others' noise.
- "nothing" is a variant that does nothing: what it shows is the error of the method on this machine
  at this moment. Differences of that size mean nothing.
- The 95 % interval is a bootstrap of the median. A limit inside it is "unclear", not passed.
- "measured" is the share of the steps due that the run's file holds, for the kind of tensor that
  has fewest. A monitor may skip a step when its writer is behind, and it switches a failing probe
  off: both make it look cheap. Below 99 % no limit counts as kept, and failing probes raise here.
- "everything" is gradients, parameters, exact updates, activations and sampled histograms, with
  outputs read whole at every tenth step and in part between, as `watch()` does it (docs/decisions/
  0018); "outputs whole" reads them whole, and counts their histograms, at every step; the
  optimizer's moments, inputs, clocks, the machine's sampler and the diagnosis beside the training
  are off there, and on in "defaults".
- "CPU ms" is the CPU time of this process, all threads, that a step adds: background threads of a
  monitor show here even where they cost no time. wandb's own process is not in it.
- "bare" in the JSON file is the bare copy's step while the variant was attached to the other: if it
  is well above that of "nothing", the variant slows down what it is not attached to.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import random
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peers import PEERS, SLOW_PEERS, TMM_FULL, NotInstalled
from workloads import WORKLOADS, Observer, Training, Workload, size

NOTHING = "nothing"
EVERYTHING = "torchvitals: everything, every step"
EVERY_10 = "torchvitals: everything, every 10th step"
TORCH_BACKEND = "torchvitals: everything, every step, torch operators"
WHOLE = "torchvitals: everything, every step, outputs whole"
DEFAULTS = "torchvitals: defaults"

PERCENT_LIMITS: dict[str, dict[str, float]] = {
    EVERYTHING: {"W1": 3.0, "W3": 9.0, "W4": 8.0},
    EVERY_10: {"W1": 0.5, "W2": 1.0, "W3": 1.0, "W4": 1.0},
}
"""Most a variant may add to a step, in per cent."""

PEER_LIMIT = 1 / 12
"""On W1, everything every step may cost at most this share of torch-module-monitor's full set."""

KINDS = ("gradient", "parameter", "update", "activation")
"""What every torchvitals variant here must hold for each measured step."""

ALL_MEASURED = 0.99
"""A limit counts only where at least this share of the steps due was measured."""

DEFAULT_EVERY = 10
"""watch()'s own default for `every`."""

BACKGROUND = 1.2
"""What a second of the writer's thread costs the training."""

BUSY = 1.0
"""Load average at the start above which a warning is printed."""

WARM_UP = 2
"""Untimed steps after attaching, at least."""
OPENING_S = 1.5
"""So long go on at least the untimed steps of the copy that was attached to."""


BESIDE_S = 5.0
"""So long are watched steps taken in a row to see what is done beside them, and for two rows."""


class Torchvitals(Observer):
    """`torchvitals.watch` with the given keywords, writing to a folder that is dropped."""

    measured = math.nan
    """Share of the steps due that the run holds; known once closed."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._steps = 0

    def attach(self, training: Training) -> None:
        """Watch."""
        os.environ["TORCHVITALS_STRICT"] = "1"
        try:
            import torchvitals

            watch = torchvitals.watch
        except ImportError as error:
            raise NotInstalled(f"torchvitals.watch is not there: {error}") from error
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._path = Path(self._folder.name) / "run"
        self._monitor = watch(training.model, training.optimizer, run=self._path, **self._options)

    def after_step(self, loss: Tensor) -> None:
        """Log the loss as users do."""
        self._monitor.log(loss=loss)
        self._steps += 1

    @property
    def looked(self) -> bool:
        """Whether the last step was a measured one."""
        return self._steps % int(self._options.get("every", DEFAULT_EVERY)) == 0

    @property
    def own_s(self) -> float:
        """Seconds spent so far inside the monitor's own calls; NaN where it does not say."""
        value = getattr(self._monitor, "overhead_s", math.nan)
        return float(value) if isinstance(value, int | float) else math.nan

    @property
    def background_s(self) -> float:
        """CPU seconds of the writer's thread so far."""
        for thread in threading.enumerate():
            if thread.name == "torchvitals" and thread.ident is not None:
                return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        return 0.0

    def close(self) -> None:
        """Close the monitor, count what it kept, drop the run."""
        import torchvitals

        self._monitor.close()
        due = -(-self._steps // self._options.get("every", DEFAULT_EVERY))
        with torchvitals.open_run(self._path) as history:
            kept = min(len(history.steps(kind)) for kind in KINDS)
        self.measured = kept / due if due else math.nan
        self._folder.cleanup()


@dataclass(frozen=True, slots=True)
class Variant:
    """A monitor to be timed."""

    name: str
    make: Callable[[], Observer]
    every: int = 1
    """Steps per measured step: segments are whole multiples of it."""
    weight: int = 1
    """How many times as many pairs it gets: ours are small and need more."""
    slow: bool = False
    """Adds several steps' worth: one pair of short segments a round shows it well enough."""


def variants() -> list[Variant]:
    """The null variant, ours and the peers."""
    everything = {
        "updates": "exact",
        "activations": True,
        "gradients": True,
        "parameters": True,
        "histograms": "sampled",
        # Beside the tensors: bench/signs.py measures these.
        "optimizer_state": False,
        "clocks": False,
        "machine": False,
        "inputs": False,
        "diagnose": False,
    }
    ours = [
        Variant(EVERYTHING, lambda: Torchvitals(**everything, every=1, backend="native"), weight=3),
        Variant(
            EVERY_10,
            lambda: Torchvitals(**everything, every=10, backend="native"),
            every=10,
            weight=2,
        ),
        Variant(WHOLE, lambda: Torchvitals(**everything, every=1, exact_every=1, backend="native")),
        Variant(DEFAULTS, Torchvitals, every=10, weight=2),
        Variant(
            TORCH_BACKEND, lambda: Torchvitals(**everything, every=1, backend="torch"), slow=True
        ),
    ]
    peers = [Variant(name, make, slow=name in SLOW_PEERS) for name, make in PEERS.items()]
    return [Variant(NOTHING, Observer, weight=3), *ours, *peers]


@dataclass(slots=True)
class Samples:
    """What was measured of one variant, a step, one entry a pair of segments."""

    bare_s: list[float] = field(default_factory=list)
    watched_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """CPU time of the watched segment less that of the bare one."""
    own_s: list[float] = field(default_factory=list)
    background_s: list[float] = field(default_factory=list)
    """What the writer's thread costs; in `watched_s` already."""
    measured: list[float] = field(default_factory=list)
    """Share of the steps due that were kept, one entry a turn."""
    missing: str = ""
    """Why it could not run."""


@dataclass(slots=True)
class Result:
    """The figures of one variant on one workload, all of them a step."""

    variant: str
    pairs: int = 0
    bare_ms: float = math.nan
    added_ms: float = math.nan
    iqr_ms: tuple[float, float] = (math.nan, math.nan)
    added_percent: float = math.nan
    interval_percent: tuple[float, float] = (math.nan, math.nan)
    own_ms: float = math.nan
    background_ms: float = math.nan
    cpu_ms: float = math.nan
    measured: float = math.nan
    of_peer: float = math.nan
    """Added time over that of torch-module-monitor with activations."""
    limits: list[str] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    missing: str = ""


def own_seconds(training: Training) -> float:
    """What the attached monitor says of itself."""
    return float(getattr(training.observer, "own_s", math.nan))


def background_seconds(observer: Observer) -> float:
    """What was done so far beside the training, where that is known."""
    return float(getattr(observer, "background_s", 0.0))


@dataclass(slots=True)
class Segment:
    """Timed steps in a row. Seconds a step, but for the single ones."""

    steps: list[float]
    looked: list[bool]
    """Which of them the observer measured, as far as it says so."""
    wall: float
    """Without what the observer does beside the training."""
    cpu: float
    own: float
    """In the monitor's own calls."""


def segment(training: Training, observer: Observer, steps: int, settle: int) -> Segment:
    """Run `settle` untimed steps, then `steps`."""
    for _ in range(settle):
        training.step()
    own, beside = own_seconds(training), background_seconds(observer)
    cpu, took, looked = time.process_time(), [], []
    for _ in range(steps):
        begin = time.perf_counter()
        training.step()
        took.append(time.perf_counter() - begin)
        looked.append(bool(getattr(training.observer, "looked", True)))
    cpu = time.process_time() - cpu
    wall = sum(took) - BACKGROUND * (background_seconds(observer) - beside)
    own = own_seconds(training) - own
    return Segment(took, looked, wall / steps, cpu / steps, own / steps)


def compared(bare: Segment, watched: Segment) -> tuple[float, float]:
    """Seconds of a bare step, and of a watched one."""
    if all(watched.looked):
        return bare.wall, watched.wall
    usual = statistics.median(bare.steps)
    measured = [took for took, looked in zip(watched.steps, watched.looked, strict=True) if looked]
    others = statistics.median(
        took for took, looked in zip(watched.steps, watched.looked, strict=True) if not looked
    )
    rest = len(watched.steps) - len(measured)
    return usual, (sum(measured) + rest * others) / len(watched.steps)


def warm_up(training: Training, seconds: float = 0.0) -> None:
    """Untimed steps, for so long at least."""
    begun, done = time.perf_counter(), 0
    while done < WARM_UP or time.perf_counter() - begun < seconds:
        training.step()
        done += 1


def beside_a_step(training: Training, observer: Observer, every: int) -> float:
    """Seconds of what is done beside each of many watched steps in a row."""
    if not hasattr(observer, "background_s"):
        return 0.0
    begun, before, done = time.perf_counter(), background_seconds(observer), 0
    while done < 2 * every or done % every or time.perf_counter() - begun < BESIDE_S:
        training.step()
        done += 1
    return (background_seconds(observer) - before) / done


def turn(
    variant: Variant,
    bare: Training,
    watched: Training,
    samples: Samples,
    *,
    steps: int,
    pairs: int,
    settle: int,
    dice: random.Random,
) -> None:
    """Attach the variant to `watched`, take pairs of segments, close it."""
    gc.collect()
    observer = variant.make()
    watched.observe(observer)
    try:
        warm_up(watched, OPENING_S)
        warm_up(bare)
        for _ in range(pairs):
            taken = {}
            for which in dice.sample(["bare", "watched"], 2):
                training = watched if which == "watched" else bare
                taken[which] = segment(training, observer, steps, settle)
            without, watching = compared(taken["bare"], taken["watched"])
            samples.bare_s.append(without)
            samples.watched_s.append(watching)
            samples.cpu_s.append(taken["watched"].cpu - taken["bare"].cpu)
            samples.own_s.append(taken["watched"].own)
        cost = BACKGROUND * beside_a_step(watched, observer, variant.every)
        samples.watched_s[-pairs:] = [wall + cost for wall in samples.watched_s[-pairs:]]
        samples.background_s += [cost] * pairs
    finally:
        watched.release()
    samples.measured.append(float(getattr(observer, "measured", math.nan)))


def measure(
    workload: Workload,
    chosen: Sequence[Variant],
    *,
    rounds: int,
    pairs: int,
    settle: int,
    dice: random.Random,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Samples]:
    """All rounds of one workload."""
    copies = [workload.make(seed=0), workload.make(seed=0)]
    for training in copies:
        warm_up(training)
    samples = {variant.name: Samples() for variant in chosen}
    for number in range(rounds):
        for variant in dice.sample(list(chosen), len(chosen)):
            found = samples[variant.name]
            if found.missing:
                continue
            progress(f"{workload.name} round {number + 1}/{rounds}: {variant.name}")
            bare, watched = dice.sample(copies, 2)
            # Whole multiples of `every`, so that each group holds its share of measured steps.
            steps = variant.every * -(-workload.segment // variant.every)
            each = pairs * variant.weight if variant.every == 1 else variant.weight
            if variant.slow:
                steps, each = max(1, steps // 4), 1
            try:
                turn(
                    variant,
                    bare,
                    watched,
                    found,
                    steps=steps,
                    pairs=each,
                    settle=settle,
                    dice=dice,
                )
            except NotInstalled as error:
                found.missing = str(error)
    return samples


def summarise(name: str, samples: Samples) -> Result:
    """Medians, quartiles and the bootstrap interval of one variant."""
    result = Result(variant=name, missing=samples.missing)
    if not samples.bare_s:
        return result
    bare = np.array(samples.bare_s)
    added = np.array(samples.watched_s) - bare
    base = float(np.median(bare))
    draws = np.random.default_rng(0).choice(added, (2000, added.size))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    result.pairs = int(added.size)
    result.bare_ms = 1e3 * base
    result.added_ms = 1e3 * float(np.median(added))
    result.iqr_ms = (
        1e3 * float(np.percentile(added, 25)),
        1e3 * float(np.percentile(added, 75)),
    )
    result.added_percent = 100 * float(np.median(added)) / base
    result.interval_percent = (100 * float(low) / base, 100 * float(high) / base)
    result.own_ms = 1e3 * float(np.median(samples.own_s))
    if samples.background_s:
        result.background_ms = 1e3 * float(np.mean(samples.background_s))
    result.cpu_ms = 1e3 * float(np.median(samples.cpu_s))
    result.measured = float(np.mean(samples.measured)) if samples.measured else math.nan
    return result


def verdict(
    value: float, interval: tuple[float, float], limit: float, measured: float = math.nan
) -> str:
    """ "pass", "FAIL", "unclear" with the way it leans, or why there is none."""
    if math.isnan(value):
        return "not measured"
    if measured < ALL_MEASURED:
        return f"void: {100 * measured:.0f} % of the steps measured"
    says = "pass" if value <= limit else "FAIL"
    return f"unclear ({says})" if interval[0] <= limit <= interval[1] else says


def judge(workload: str, results: dict[str, Result]) -> None:
    """Fill in the ratios to the peer, the limits and whether they hold."""
    peer = results.get(TMM_FULL)
    for result in results.values():
        if peer is not None and peer.added_ms > 0:
            result.of_peer = result.added_ms / peer.added_ms
        limit = PERCENT_LIMITS.get(result.variant, {}).get(workload)
        if limit is not None:
            result.limits.append(f"≤ {limit:g} %")
            result.verdicts.append(
                verdict(result.added_percent, result.interval_percent, limit, result.measured)
            )
        if workload == "W1" and result.variant == EVERYTHING:
            # The peer's own spread is small beside the factor; the interval is ours, scaled.
            scale = result.of_peer / result.added_percent if result.added_percent else math.nan
            low, high = sorted(scale * end for end in result.interval_percent)
            result.limits.append("≤ 1/12 of torch-module-monitor")
            result.verdicts.append(
                verdict(result.of_peer, (low, high), PEER_LIMIT, result.measured)
            )


def number(value: float, digits: int = 2) -> str:
    """A figure, or a dash where there is none."""
    return "–" if math.isnan(value) else f"{value:.{digits}f}"


HEADER = (
    "variant",
    "added ms (IQR)",
    "added %",
    "95 % interval",
    "own calls ms",
    "beside ms",
    "CPU ms",
    "measured %",
    "× t-m-m",
    "limit",
    "verdict",
)


def cells(result: Result) -> tuple[str, ...]:
    """One line of the table."""
    if result.missing:
        return (result.variant, result.missing, *[""] * 7, *limits_of(result))
    low, high = result.iqr_ms
    return (
        result.variant,
        f"{number(result.added_ms)} ({number(low)}…{number(high)})",
        number(result.added_percent),
        f"{number(result.interval_percent[0])}…{number(result.interval_percent[1])}",
        number(result.own_ms),
        number(result.background_ms),
        number(result.cpu_ms),
        number(100 * result.measured, 0),
        number(result.of_peer, 3),
        *limits_of(result),
    )


def limits_of(result: Result) -> tuple[str, str]:
    """Limits and verdicts as two cells."""
    return "; ".join(result.limits), "; ".join(result.verdicts)


def text_table(results: Sequence[Result]) -> str:
    """The table for a terminal."""
    lines = [HEADER, *(cells(result) for result in results)]
    # A missing peer's reason may run over: it does not widen its column for everybody.
    widths = [
        max(len(line[i]) for line in lines if i == 0 or not (line[2] == "" and i == 1))
        for i in range(len(HEADER))
    ]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def markdown_table(results: Sequence[Result]) -> str:
    """The same for the documentation."""
    lines = [HEADER, ("---",) * len(HEADER), *(cells(result) for result in results)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def describe(workload: Workload, results: Sequence[Result]) -> str:
    """Workload, size and bare step on one line."""
    with torch.device("meta"):
        parameters, tensors = size(workload.model())
    bare = [result.bare_ms for result in results if not math.isnan(result.bare_ms)]
    return (
        f"{workload.name} {workload.title}: {parameters / 1e6:.1f} M parameters in {tensors} "
        f"tensors, bare step {number(float(np.median(bare)) if bare else math.nan, 1)} ms"
    )


def machine() -> str:
    """What it ran on."""
    load = os.getloadavg()[0]
    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, Python "
        f"{platform.python_version()}, {os.cpu_count()} cores, load average {load:.1f}"
    )


def conclusion(judged: Sequence[tuple[str, str]]) -> str:
    """The last lines: which limits were not shown to hold."""
    if not judged:
        return "no limit was judged: no variant that has one was run"
    open_ones = [f"  {what}, {says}" for what, says in judged if says != "pass"]
    if not open_ones:
        return f"all {len(judged)} limits judged hold"
    return "\n".join([f"{len(open_ones)} of {len(judged)} limits not shown to hold:", *open_ones])


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit code says whether every limit held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="W1,W2,W3,W4")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=2, help="pairs of segments a turn")
    parser.add_argument("--settle", type=int, default=1, help="untimed steps before a segment")
    parser.add_argument("--only", default="", help="only variants whose name matches this regex")
    parser.add_argument("--quick", action="store_true", help="2 rounds, 1 pair: does it run?")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    rounds, pairs = (2, 1) if options.quick else (options.rounds, options.pairs)
    chosen = [v for v in variants() if re.search(options.only, v.name) or v.name == NOTHING]
    before = machine()
    print(before)
    print(
        f"paired design: {rounds} rounds in random order; bare and watched segments alternate, "
        f"each after {options.settle} untimed step(s); medians of the paired differences a step"
    )
    if rounds < 8:
        print("fewer than 8 rounds: good for seeing that it runs, not for quoting")
    if os.getloadavg()[0] > BUSY:
        print(f"THE MACHINE IS BUSY (load above {BUSY:g}): do not quote these figures")
    document: dict[str, Any] = {"machine": before, "rounds": rounds, "workloads": {}}
    pages = [before, ""]
    judged: list[tuple[str, str]] = []
    for name in options.workloads.split(","):
        workload = WORKLOADS[name]
        samples = measure(
            workload,
            chosen,
            rounds=rounds,
            pairs=pairs,
            settle=options.settle,
            dice=random.Random(options.seed),
            progress=lambda text: print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True),
        )
        print("\r\033[K", end="", file=sys.stderr, flush=True)
        results = {
            variant.name: summarise(variant.name, samples[variant.name]) for variant in chosen
        }
        judge(name, results)
        table = list(results.values())
        print(f"\n{describe(workload, table)}\n{text_table(table)}", flush=True)
        pages += [f"**{describe(workload, table)}**", "", markdown_table(table), ""]
        document["workloads"][name] = {
            "results": [asdict(result) for result in table],
            "samples": {variant: asdict(found) for variant, found in samples.items()},
        }
        judged += [
            (f"{name} {result.variant}: {limit}", says)
            for result in table
            for limit, says in zip(result.limits, result.verdicts, strict=True)
        ]
    document["load_after"] = os.getloadavg()[0]
    print(f"\nload average at the end {document['load_after']:.1f}")
    print(conclusion(judged))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1))
    if options.markdown:
        options.markdown.write_text("\n".join(pages))
    return any(says != "pass" for _, says in judged)


if __name__ == "__main__":
    sys.exit(main())
