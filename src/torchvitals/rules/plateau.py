"""The loss does not fall.

**Shows as** a flat curve: from the start (nothing was learned), or after a while (as good as it
gets).

**Why it hurts**: from the start, it means that something is broken; later, it wastes time.

**Judged by** the level now against the start, the trend of the last fifth (no change beyond 3.5
standard errors), and a learning rate that is not annealed. Where the number of classes is known,
a loss at the level of guessing (ln C) counts as "nothing was learned"; one that settled within 20 %
of it is a warning. A plateau after real progress is information.

**Advised by** the [forecast](../curves.md) of the loss at the last planned step (where that is not
known, as far again as the run is) and by the validation loss: to stop and take the checkpoint that
was best on validation, to lower the rate, or to go on. When it fires does not depend on them.

**Known false alarms**: losses that may be negative (REINFORCE) or several losses (a GAN) are not
judged; a run with a long warm-up is flat at first.
"""

from __future__ import annotations

from math import log

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.outlook import Outlook, Validation, outlook, validation
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
from torchvitals.rules.thresholds import Thresholds

TITLE = "plateau"
NEEDS = ("loss",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Nothing was learned, or nothing more is learned."""
    loss = run.loss
    if len(loss.finite) < limits.plateau_points:
        raise NotChecked(f"needs {limits.plateau_points} losses")
    if not loss.falls or loss.start <= 0:
        return None
    guess = trivial_loss(run)
    best = min(loss.best, loss.now)
    stuck = 1.0 - loss.now / loss.start < limits.plateau_fallen
    guessing = guess is not None and 0.93 * guess < loss.now < 1.3 * guess
    annealed = run.lr and run.lr_now < 0.1 * run.lr_peak
    lr = run.lr_now
    if (stuck or guessing) and best > 0.8 * loss.now:
        ahead = outlook(run, limits.outlook_off)
        level = (
            f"guessing among the classes, {num(guess)}"
            if guessing and guess
            else (f"the start, {num(loss.start)}")
        )
        return finding(
            __name__,
            run,
            severity=ERROR if run.last_step >= limits.plateau_error_steps else WARNING,
            sites=[ROOT],
            first_step=run.first_step,
            evidence=[
                evidence(
                    f"loss {num(loss.now)} after {run.last_step} steps, at the level of {level}",
                    Key.scalar(loss.name),
                    step=run.last_step,
                    value=loss.now,
                    threshold=(1 - limits.plateau_fallen) * loss.start,
                ),
                ahead.evidence,
            ],
            explanation=(
                f"After {run.last_step} steps the loss is at {num(loss.now)}, the level of "
                f"{level}: "
                f"the model has learned nothing about its targets.{ahead.sentence}"
            ),
            causes=[
                cause(
                    "labels do not belong to the inputs (shuffled, misaligned, constant input)",
                    "the model can't even overfit ten fixed samples whose labels you checked by "
                    "eye",
                    0.45,
                ),
                cause(
                    "the learning rate is far off",
                    "runs with lr × 10 and lr ÷ 10 differ from this one",
                    0.35,
                ),
                cause(
                    "no gradient gets through (dead units, saturation, vanishing)",
                    "the gradient norms of the first layers are near zero",
                    0.3,
                ),
            ],
            fix="overfit ten samples first: if that fails, check inputs and labels; otherwise "
            "raise "
            f"lr from {num(lr)} to {num(nice(lr * 3))}",
            change=changed("lr", lr, nice(lr * 3)),
            confidence=0.6,
        )
    settled = loss.direction.word == "flat"
    if (
        settled
        # Other losses than cross entropy may have a floor of their own.
        and guess is not None
        and loss.now > (1.0 - limits.plateau_little) * guess
        and loss.fallen < limits.plateau_little
        and run.last_step >= limits.plateau_error_steps
    ):
        return _little(run, limits)
    if annealed or not settled or loss.now < limits.solved_share * loss.start:
        return None
    ahead, best_eval = outlook(run, limits.outlook_off), validation(run)
    return finding(
        __name__,
        run,
        severity=INFO,
        sites=[ROOT],
        first_step=int(loss.levels.steps[-max(2, len(loss.levels) // 5)]),
        evidence=[
            evidence(
                f"no change of the loss beyond its noise in the last fifth (level {num(loss.now)})",
                Key.scalar(loss.name),
                step=run.last_step,
                value=loss.now,
            ),
            ahead.evidence,
            *([best_eval.evidence] if best_eval is not None else []),
            evidence(f"it had fallen by {share(max(loss.fallen, 0.0))} before"),
        ],
        explanation=(
            f"The loss has settled at {num(loss.now)} while the learning rate is still at "
            f"{share(lr / run.lr_peak) if run.lr else '100 %'} of its peak.{ahead.sentence}"
        ),
        causes=[
            cause(
                "the noise of the gradient keeps it from going lower at this rate",
                "lowering lr by 3 lets the loss fall at once",
                0.5,
            ),
            cause(
                "the model has learned what it can (capacity, data)",
                "a larger model gets lower on the same data",
                0.4,
            ),
        ],
        fix=_advice(ahead, best_eval, f"lr from {num(lr)} to {num(nice(lr / 3))}", limits),
        change=changed("lr", lr, nice(lr / 3)),
        confidence=0.4,
    )


def _advice(ahead: Outlook, best: Validation | None, rate: str, limits: Thresholds) -> str:
    """To stop, to lower the rate, or to go on. It has no number that changes from look to look."""
    by = f"by step {ahead.at:,}" if ahead.is_planned else "in as many steps again"
    pays = ahead.gain >= limits.plateau_gain
    sees = f"the forecast sees {'more' if pays else 'less'} than {share(limits.plateau_gain)} to"
    if best is not None and best.improves:
        return f"lower {rate}, or go on: the validation loss still falls"
    if pays:
        return f"lower {rate}, or go on: {sees} gain {by}"
    stop = "stop here" if best is None else f"stop, and take the checkpoint of step {best.step:,}"
    if not ahead.is_known:
        return f"lower {rate}, or {stop}"
    return f"{stop}, or lower {rate}: as it is {sees} gain {by}"


def _little(run: Run, limits: Thresholds) -> Finding:
    """It settled before much was learned."""
    loss, lr, ahead = run.loss, run.lr_peak, outlook(run, limits.outlook_off)
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=[ROOT],
        first_step=int(loss.levels.steps[len(loss.levels) // 2]),
        evidence=[
            evidence(
                f"the loss has settled at {num(loss.now)}, {share(max(loss.fallen, 0.0))} below "
                f"its start ({num(loss.start)}); healthy is more than "
                f"{share(limits.plateau_little)}",
                Key.scalar(loss.name),
                step=run.last_step,
                value=loss.fallen,
                threshold=limits.plateau_little,
            ),
            ahead.evidence,
        ],
        explanation=(
            f"After {run.last_step} steps the loss stands at {num(loss.now)} and has lost only "
            f"{share(max(loss.fallen, 0.0))}: little of the targets can be told from the inputs."
            f"{ahead.sentence}"
        ),
        causes=[
            cause(
                "many labels are wrong, or do not belong to the inputs",
                "of fifty samples looked at by eye, several are labelled wrongly",
                0.5,
            ),
            cause(
                "the model can't express it, or little reaches it",
                "a larger model, or better inputs, get lower",
                0.35,
            ),
            cause("the learning rate is off", "runs with lr × 3 and lr ÷ 3 get lower", 0.3),
        ],
        fix="check fifty labels by eye; if they are right, try lr "
        f"{num(nice(lr * 3))} and {num(nice(lr / 3))} instead of {num(lr)}",
        change=changed("lr", lr, nice(lr / 3)),
        confidence=0.5,
    )


def trivial_loss(run: Run) -> float | None:
    """Ln C where the number of classes of the criterion is known."""
    for fn in ("cross_entropy", "nll_loss"):
        classes = run.line("criterion", fn, "num_classes")
        if classes and classes.values[-1] >= 2 and _mean_reduced(run, fn):
            return log(float(classes.values[-1]))
    if run.has("criterion", "batch_size", "binary_cross_entropy_with_logits"):
        return log(2.0)
    return None


def _mean_reduced(run: Run, fn: str) -> bool:
    summed = run.line("criterion", fn, "sum_reduction")
    return not summed or not np.any(summed.values > 0)
