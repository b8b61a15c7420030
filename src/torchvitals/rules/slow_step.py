"""Steps have become slower.

**Shows as** a throughput that has fallen for good.

**Why it hurts**: the rest of the run costs twice as much, or more.

**Judged by** steps a second over the last quarter of the run against the best half before: less
than half (an error at a fifth, if that has lasted a minute). Source: the stability guide (−50 %,
red −80 %).

**Known false alarms**: a machine whose processors others keep busy (told as information, where the
machine is sampled); evaluations and checkpoints between steps;
longer sequences late in a run.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "slow steps"
NEEDS = ("speed/steps_per_s",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """A throughput that fell and stayed down."""
    line = run.line("speed", "run", "steps_per_s").finite
    if len(line) < limits.slow_checks:
        raise NotChecked(f"needs {limits.slow_checks} monitored steps")
    values = line.values[2:]
    late = values[-max(4, len(values) // 4) :]
    before = values[: len(values) - len(late)]
    usual, now = float(np.median(before)), float(np.median(late))
    # All of the last quarter, not a few steps of it.
    if now > limits.slow_share * usual or np.quantile(late, 0.75) > 1.2 * limits.slow_share * usual:
        return None
    step = int(line.steps[2:][len(values) - len(late)])
    steps, times = run.stored.times("speed")
    since = times[steps >= step]
    lasted = float(since[-1] - since[0]) if len(since) else 0.0
    if lasted < limits.slow_least_s:
        return None
    crowded = _crowded(run, step, limits)
    red = now < limits.slow_share_error * usual and lasted > 60.0
    return finding(
        __name__,
        run,
        severity=INFO if crowded else ERROR if red else WARNING,
        sites=["the machine"],
        first_step=step,
        evidence=[
            evidence(
                f"{num(now)} steps a second since step {step}, {num(usual)} before: "
                f"{share(now / usual)}, healthy is above {share(limits.slow_share)}",
                Key("speed", "run", "steps_per_s"),
                step=int(line.steps[-1]),
                value=now / usual,
                threshold=limits.slow_share,
            ),
        ],
        explanation=f"Since step {step} the training runs at {share(now / usual)} of its speed "
        "before.",
        causes=[
            cause(
                "something else uses the machine",
                "its processors are busy with other processes",
                0.9 if crowded else 0.5,
            ),
            cause(
                "memory is short: swapping, or an allocator that keeps freeing",
                "resident or reserved memory is near its limit",
                0.4,
            ),
            cause("data come more slowly", "the share of waiting for data rose", 0.3),
        ],
        fix="look at what runs beside it (vitals status, top), then profile one step",
        change={"profile": True},
        confidence=0.6,
    )


def _crowded(run: Run, since: int, limits: Thresholds) -> bool:
    """Whether all processors are busy, and mostly with other processes."""
    lines = [run.line("machine", site, "cpu_frac").finite for site in ("process", "system")]
    # The machine is looked at every other second: there may be nothing since.
    mine, all_of_them = (
        line.after(since).values if line.after(since) else line.last(4) for line in lines
    )
    if not len(mine) or not len(all_of_them):
        return False
    busy, own = float(np.median(all_of_them)), float(np.median(mine))
    return busy > 0.9 and own < (1.0 - limits.slow_others) * busy
