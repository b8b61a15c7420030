"""The loss left its best level for good.

**Shows as** a loss that falls first (or not at all) and then climbs and stays up.

**Why it hurts**: the weights are worse than they were; every further step costs time.

**Judged by** the level of the last steps against the best level so far: twice as high in two
blocks of the curve running.

**Known false alarms**: several losses, or losses that may be negative, are not judged; near zero
(below 1 % of the start) ratios mean nothing.
"""

from __future__ import annotations

import numpy as np

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
from torchvitals.rules.say import nice, num
from torchvitals.rules.thresholds import Thresholds

TITLE = "divergence"
NEEDS = ("loss",)
CHEAP = True

SMALL = 0.1
"""Share of the first loss below which one that comes up again is no alarm."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Sustained loss above twice its best."""
    loss = run.loss
    if len(loss) < limits.divergence_points:
        raise NotChecked(f"needs {limits.divergence_points} losses")
    if not loss.falls:
        return None
    levels = loss.levels
    best = loss.best
    floor = limits.solved_share * loss.start
    high = levels.values > limits.divergence_factor * max(best, floor)
    if len(high) < 2 or not high[-2:].all():
        return None
    low = np.flatnonzero(~high)
    since = int(levels.steps[low[-1]]) if len(low) else run.first_step
    now = loss.now
    lr = run.lr_at(since)
    target = nice(lr / 5) if lr > 0 else float("nan")
    bad = now >= loss.start or now >= 2 * limits.divergence_factor * best
    bad = bad and not loss.recovers(since)
    return finding(
        __name__,
        run,
        # Near zero, a loss may double and mean nothing.
        severity=ERROR if bad else INFO if now < SMALL * loss.start else WARNING,
        sites=[ROOT],
        first_step=since,
        evidence=[
            evidence(
                f"loss {num(now)} now, {num(best)} at its best (step {loss.best_step}): "
                f"{num(now / max(best, 1e-30))} times, healthy is below "
                f"{num(limits.divergence_factor)}",
                Key.scalar(loss.name),
                step=run.last_step,
                value=now / max(best, 1e-30),
                threshold=limits.divergence_factor,
            )
        ],
        explanation=(
            f"The loss was at {num(best)} around step {loss.best_step}, left that level after step "
            f"{since} and is at {num(now)} now."
        ),
        causes=[
            cause(
                "the learning rate is too high for this phase",
                "update ratios or gradient norms rise with the loss",
                0.5,
            ),
            cause(
                "a bad step or batch threw the weights away",
                f"the loss jumped within a few steps after {since}",
                0.3,
            ),
            cause("the data changed", "the loss of the old data is still low", 0.2),
        ],
        fix=(
            f"go back to the checkpoint of step {loss.best_step} and go on with lr "
            f"{num(target)} instead of {num(lr)}"
        ),
        change={**changed("lr", lr, target), "roll_back_to": loss.best_step},
        confidence=0.8,
    )
