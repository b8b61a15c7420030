"""The learning-rate schedule does something nobody wants.

**Shows as** a rate that jumps up, falls to nothing long before the end, or is 0.

**Why it hurts**: a jump throws the weights away; a rate of nothing trains nothing.

**Judged by** the rates of all parameter groups: exactly 0 in each of them at three monitored steps
before the end. And by the rate of the largest group, of those that are not at 0: a sudden rise to
more than five times everything before, out of a steady stretch; below 1 % of the peak for more than
half of the run (a scheduler stepped per batch that was made for epochs). A warm-up of more than
10 % of the steps is told as information.

**Known false alarms**: warm restarts and cycles come back to rates that were there before, which
is not a jump. A group that is frozen by a rate of 0, while others learn, is nobody's fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchvitals.curves import recognise
from torchvitals.record import Finding, Key
from torchvitals.rules.rule import (
    ERROR,
    INFO,
    WARNING,
    NotChecked,
    cause,
    changed,
    evidence,
    finding,
)
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, share
from torchvitals.rules.table import Line
from torchvitals.rules.thresholds import Thresholds

TITLE = "schedule fault"
NEEDS = ("optimizer/lr",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Zero, a jump, a fall too early, a warm-up too long: the worst of them."""
    groups = _groups(run)
    group = next((one for one in groups if one.line.values[-1] != 0), next(iter(groups), None))
    if group is None or len(group.line) < limits.wiring_checks:
        raise NotChecked(f"needs {limits.wiring_checks} monitored steps")
    return (
        _zero(run, groups, limits)
        or _jump(run, group, limits)
        or _gone(run, group, limits)
        or _long_warm_up(run, group, limits)
    )


@dataclass(frozen=True, slots=True)
class Group:
    """The rates of a parameter group."""

    key: Key
    line: Line


def _groups(run: Run) -> list[Group]:
    """Those that hold parameters, the largest first."""
    sites = run.sites("optimizer", "lr")
    sizes = [len(group.parameters) for group in run.info.groups]
    if len(sizes) != len(sites):  # some came later: nobody knows how large they are
        sizes = [1] * len(sites)
    largest = sorted(zip(sizes, sites, strict=True), key=lambda found: -found[0])
    groups = [
        Group(Key("optimizer", site, "lr"), run.line("optimizer", site, "lr").finite)
        for size, site in largest
        if size
    ]
    return [group for group in groups if group.line]


def _zero_since(line: Line) -> int | None:
    """The step from which on every rate is 0."""
    above = np.flatnonzero(line.values != 0)
    first = int(above[-1]) + 1 if len(above) else 0
    return int(line.steps[first]) if first < len(line) else None


def _zero(run: Run, groups: list[Group], limits: Thresholds) -> Finding | None:
    ends = [_zero_since(group.line) for group in groups]
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        return None  # something is learned in another group
    last = groups[int(np.argmax(known))]  # the one that learned longest
    line, since = last.line, max(known)
    tail = int((line.steps >= since).sum())
    planned = run.total_steps
    left = planned is not None and since < 0.9 * planned
    early = tail >= limits.schedule_zero_checks and (
        tail == len(line) or left or (planned is None and tail > 0.25 * len(line))
    )
    if not early:
        return None
    before = float(line.values.max())
    target = before if before > 0 else 1e-3
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=["learning rate"],
        first_step=since,
        evidence=[
            evidence(f"lr is 0 since step {since}", last.key, step=since, value=0, threshold=0)
        ],
        explanation=f"The learning rate is 0 since step {since}: nothing is learned any more.",
        causes=[
            cause(
                "the schedule has reached its end before the training has",
                "its total number of steps is smaller than that of the run",
                0.7,
            ),
            cause(
                "the rate was set to 0, or a warm-up multiplies by 0",
                "the scheduler's base_lrs are 0, or its lambda returns 0",
                0.4,
            ),
        ],
        fix=f"let the schedule last to the end of the run, or set lr from 0 to {num(target)}",
        change=changed("lr", 0.0, target),
        confidence=0.9,
    )


def _jump(run: Run, group: Group, limits: Thresholds) -> Finding | None:
    line, values = group.line, group.line.values
    if len(values) < 4:
        return None
    before = np.maximum.accumulate(values)[2:-1]
    calm = values[2:-1] <= 1.05 * values[:-3]
    high = calm & (before > 0) & (values[3:] > limits.schedule_jump * before)
    if not high.any():
        return None
    at = int(np.argmax(high)) + 3
    step, factor = int(line.steps[at]), float(values[at] / values[at - 1])
    return finding(
        __name__,
        run,
        severity=ERROR if values[-1] >= values[at] * 0.5 else WARNING,
        sites=["learning rate"],
        first_step=step,
        evidence=[
            evidence(
                f"lr jumped from {num(values[at - 1])} to {num(values[at])} at step "
                f"{step}, "
                f"×{num(factor)}",
                group.key,
                step=step,
                value=values[at],
                threshold=limits.schedule_jump,
            )
        ],
        explanation=(
            f"At step {step} the learning rate rose {num(factor)}-fold from one look to "
            "the next, out of a steady stretch: weights tuned at the old rate are thrown "
            "about by the new one."
        ),
        causes=[
            cause(
                "a schedule or a callback sets the rate to a wrong value",
                f"print the scheduler's rate around step {step}",
                0.7,
            ),
            cause(
                "a scheduler was made anew (resume, second phase) and forgot its base",
                "its base_lrs differ from the rate before",
                0.3,
            ),
        ],
        fix=f"hold lr at {num(values[at - 1])} instead of {num(values[at])} from step {step} on",
        change=changed("lr", float(values[at]), float(values[at - 1])),
        confidence=0.92,
    )


def _gone(run: Run, group: Group, limits: Thresholds) -> Finding | None:
    line = group.line
    peak = float(line.values.max())
    top = int(np.argmax(line.values))
    low = line.values[top:] < limits.schedule_gone * peak
    if not low.any() or not low[-1]:
        return None
    since = (
        int(line.steps[top:][np.flatnonzero(~low)[-1] + 1])
        if (~low).any()
        else int(line.steps[top])
    )
    planned = run.total_steps
    length = planned if planned is not None else run.last_step
    spent = run.last_step - since
    if spent < limits.schedule_gone_steps or since > (1.0 - limits.schedule_gone_share) * length:
        return None
    return finding(
        __name__,
        run,
        severity=ERROR if planned is not None or run.ended else WARNING,
        sites=["learning rate"],
        first_step=since,
        evidence=[
            evidence(
                f"lr is below {share(limits.schedule_gone)} of its peak {num(peak)} since step "
                f"{since} (now {num(line.values[-1])}), with {length - since} of {length} steps "
                "to go",
                group.key,
                step=since,
                value=float(line.values[-1]),
                threshold=limits.schedule_gone * peak,
            )
        ],
        explanation=(
            f"The learning rate has decayed to {num(line.values[-1])} by step {since} of {length}: "
            "most of the training runs with a rate that teaches nothing."
        ),
        causes=[
            cause(
                "scheduler.step() is called per batch, but the schedule counts epochs",
                "the rate changes in every step; T_max, step_size or gamma were meant for epochs",
                0.75,
            ),
            cause(
                "the schedule's length is shorter than the training",
                "its total steps are fewer than those of the run",
                0.3,
            ),
        ],
        fix=(
            "call scheduler.step() once per epoch, or give the schedule the number of steps: "
            f"{length} instead of about {since}; lr stays at {num(peak)} until then"
        ),
        change={
            **changed("schedule_steps", since, length),
            **changed("lr", float(line.values[-1]), peak),
        },
        confidence=0.9,
    )


def _long_warm_up(run: Run, group: Group, limits: Thresholds) -> Finding | None:
    line = group.line
    length = run.total_steps or (run.last_step if run.ended else None)
    if length is None or length < limits.schedule_least_steps:
        return None
    found = recognise(line.steps, line.values)
    if found.shape == "cyclical" or not found.warmup_steps > limits.schedule_warm_up * length:
        return None
    good = int(nice(limits.schedule_warm_up * length))
    return finding(
        __name__,
        run,
        severity=INFO,
        sites=["learning rate"],
        first_step=run.first_step,
        last_step=found.peak_step,
        evidence=[
            evidence(
                f"the warm-up takes {found.warmup_steps} of {length} steps, usual is up to "
                f"{share(limits.schedule_warm_up)}",
                group.key,
                step=found.peak_step,
                value=found.warmup_steps / length,
                threshold=limits.schedule_warm_up,
            )
        ],
        explanation="A long warm-up spends much of the training at small rates.",
        causes=[
            cause(
                "the warm-up was set in steps for a longer run",
                "the config's warm-up steps belong to another total",
                0.6,
            ),
            cause("it is meant so (a fragile model)", "a shorter one diverges", 0.4),
        ],
        fix=f"shorten the warm-up from {found.warmup_steps} to {good} steps",
        change=changed("warmup_steps", found.warmup_steps, good),
        confidence=0.5,
    )
