"""The loss jumped for a few steps.

**Shows as** one or a few losses far above their neighbours.

**Why it hurts**: a bad step can undo thousands of good ones; with Adam its trace stays in the
moments.

**Judged by** the robust z-score of the log loss (6 σ over the last 128) and its ratio to the
median before: ten times is a warning, and an error when it neither came back nor is learned away
(as after a change of the data). Source: OLMo-core, the stability guide.

**Known false alarms**: losses that may be negative, or several losses (a GAN), are not judged;
small spikes (two to ten times) are information.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import ROOT, Finding, Key
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
from torchvitals.rules.say import num
from torchvitals.rules.spikes import robust_z
from torchvitals.rules.stored import Ints
from torchvitals.rules.thresholds import Thresholds

TITLE = "loss spike"
NEEDS = ("loss",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """The largest spike, and whether the loss came back from it."""
    loss = run.loss
    if len(loss) < limits.spike_least:
        raise NotChecked(f"needs {limits.spike_least} losses")
    if not loss.falls:
        return None
    line = loss.finite
    z, ratio = run.keep(
        "loss z", lambda: robust_z(line.values, limits.spike_window, limits.spike_least)
    )
    # At the bottom of a solved problem ratios mean nothing.
    floor = limits.solved_share * loss.start
    with np.errstate(invalid="ignore"):
        spikes = (
            (z > limits.spike_sigma) & (ratio > limits.loss_spike_small) & (line.values > floor)
        )
    for reset in run.resets:
        spikes &= ~((line.steps >= reset) & (line.steps < reset + 4 * run.every))
    if not spikes.any():
        return None
    at = int(np.nanargmax(np.where(spikes, ratio, np.nan)))
    step, worst = int(line.steps[at]), float(ratio[at])
    before = float(line.values[at] / worst)
    later = line.values[at + limits.spike_recovery :]
    lost = bool(loss.bad_steps) and loss.bad_steps[-1] == int(loss.line.steps[-1])
    back = not lost and (
        len(later) == 0 or float(np.median(later[: limits.spike_window])) < 2.0 * before
    )
    large = worst >= limits.loss_spike
    steps = line.steps[spikes]
    severity = WARNING if large else INFO
    if not back and worst >= limits.loss_spike_small:
        recovers = loss.recovers(step)
        severity = ERROR if worst >= limits.loss_spike and not recovers else WARNING
    return finding(
        __name__,
        run,
        severity=severity,
        sites=[ROOT],
        first_step=_begin(line.steps, spikes, at, limits.spike_recovery),
        last_step=int(steps[-1]) if back else None,
        evidence=[
            evidence(
                f"loss {num(float(line.values[at]))} at step {step}, {num(worst)} times the median "
                f"before ({num(before)}), {num(float(z[at]))} σ",
                Key.scalar(loss.name),
                step=step,
                value=float(line.values[at]),
                threshold=limits.loss_spike,
            ),
            evidence(
                f"{len(steps)} loss(es) beyond {num(limits.spike_sigma)} σ; "
                + ("it came back" if back else "it did not come back")
            ),
        ],
        explanation=(
            f"At step {step} the loss was {num(worst)} times what it was before"
            + (", and came back." if back else ", and it has not come back since.")
        ),
        causes=[
            cause(
                "a bad batch (outliers, wrong labels, wrong scale)",
                "the same batch again, from another state, spikes again",
                0.5 if back else 0.3,
            ),
            cause(
                "the step before was too large",
                "the update ratio or gradient norm rose before the loss did",
                0.3 if back else 0.5,
            ),
            cause(
                "the data changed (a new shard, another distribution)",
                "the loss stays up and then falls again",
                0.2 if back else 0.3,
            ),
        ],
        fix=(
            f"clip gradients at norm 1.0 and skip steps whose loss is above {num(10 * before)}; "
            "look "
            f"at the batch of step {step}"
        ),
        change={**changed("max_norm", None, 1.0), "skip_above_sigma": limits.spike_sigma},
        confidence=min(0.9, 0.4 + 0.2 * np.log10(max(worst, 1.0))),
    )


def _begin(steps: Ints, spikes: NDArray[np.bool_], at: int, apart: int) -> int:
    """Where the row of spikes that the worst one belongs to began."""
    for before in np.flatnonzero(spikes[:at])[::-1]:
        if at - int(before) > apart:
            break
        at = int(before)
    return int(steps[at])
