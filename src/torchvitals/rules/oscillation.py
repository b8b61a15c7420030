"""The loss or a validation metric swings up and down.

**Shows as** evaluations that alternate between better and worse.

**Why it hurts**: the run has reached what this learning rate can settle at.

**Judged by** evaluations: at least six, most of which turn back, by more than 10 % of their
level; or a training loss whose scatter is as large as its level long after the start.

**Known false alarms**: losses near zero scatter much, relative to their level, and are exempt;
reinforcement learning and GANs are not judged.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key, Severity
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "oscillation"
NEEDS = ("loss",)

WIDE = 3.0
"""Evaluations that swing by so many times the limit are a warning."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Evaluations that turn back, or a loss as noisy as it is high."""
    loss = run.loss
    if not loss.falls:
        return None
    line = run.validation_loss.finite
    if len(line) >= limits.oscillation_evals:
        values = line.values[len(line) // 3 :]
        moves = np.diff(values)
        turns = float(np.mean(moves[1:] * moves[:-1] < 0)) if len(moves) > 2 else 0.0
        swing = float(np.median(np.abs(moves)) / max(np.median(values), 1e-30))
        if (
            turns >= limits.oscillation_turns
            and swing > limits.oscillation_swing
            and (np.median(values) > 0.1 * loss.start)
        ):
            return _told(
                run,
                Key("eval", run.validation_split, "loss"),
                swing,
                limits,
                f"{share(turns)} of the evaluations turn back, by {share(swing)} of the level",
                severity=WARNING if swing > WIDE * limits.oscillation_swing else INFO,
            )
    if len(loss) < limits.plateau_points:
        raise NotChecked(
            f"needs {limits.plateau_points} losses or {limits.oscillation_evals} evaluations"
        )
    late, noise = loss.finite.values[len(loss.finite) // 2 :], loss.scatter
    if noise > limits.oscillation_noise and np.median(late) > 0.2 * loss.start:
        return _told(
            run,
            Key.scalar(loss.name),
            noise,
            limits,
            f"the loss scatters by {share(noise)} of its level",
        )
    return None


def _told(
    run: Run,
    key: Key,
    swing: float,
    limits: Thresholds,
    text: str,
    *,
    severity: Severity = WARNING,
) -> Finding:
    lr = run.lr_now
    return finding(
        __name__,
        run,
        severity=severity,
        sites=[ROOT],
        first_step=int(run.loss.levels.steps[len(run.loss.levels) // 2]),
        evidence=[
            evidence(text, key, step=run.last_step, value=swing, threshold=limits.oscillation_swing)
        ],
        explanation=f"The curve swings instead of settling: {text}.",
        causes=[
            cause("the learning rate is too high to settle", "lr ÷ 3 makes it smooth", 0.6),
            cause(
                "the batch is too small: its noise moves the weights",
                "a batch four times as large halves the scatter",
                0.5,
            ),
        ],
        fix=f"lower lr from {num(lr)} to {num(nice(lr / 3))}, or quadruple the batch",
        change=changed("lr", lr, nice(lr / 3)),
        confidence=0.55,
    )
