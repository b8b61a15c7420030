"""The model learns the training data by heart.

**Shows as** a validation loss that has passed its minimum while the training loss goes on
falling.

**Why it hurts**: every further step makes the model worse on new data.

**Judged by** the validation loss: more than 10 % above its best, in the last two evaluations,
with at least four of them, while the training loss is below what it was at that best; or by a
training loss below 5 % of its start with a validation loss that stays above 40 % of it. Source:
the stability guide (+10 %).

**Advised by** the step at which the validation loss was best, whose checkpoint is the one to take,
and the [forecast](../curves.md) of the training loss: how far it will go on without it.

**Known false alarms**: the loss may rise through overconfidence while the accuracy still
improves (information where an accuracy is logged); a rise by less than 3 % of the first training
loss is information too.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.outlook import outlook, validation
from torchvitals.rules.rule import (
    INFO,
    WARNING,
    NotChecked,
    cause,
    changed,
    evidence,
    finding,
)
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.table import Line
from torchvitals.rules.thresholds import Thresholds

TITLE = "overfitting"
NEEDS = ("loss", "validation")


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Validation up, training down."""
    line = run.validation_loss.finite
    if len(line) < limits.overfit_evals:
        raise NotChecked(f"needs {limits.overfit_evals} evaluations")
    at = int(np.argmin(line.values))
    best, now = float(line.values[at]), float(np.median(line.last(2)))
    if best <= 0:
        return None
    if at > len(line) - 3 or line.last(2).min() < (1 + limits.overfit_rise) * best:
        return _by_heart(run, line, limits)
    train = run.loss.finite
    then, late = train.until(int(line.steps[at])), train.after(int(line.steps[-2]))
    if not len(then):
        return None
    before = float(np.median(then.last(max(3, len(then) // 10))))
    after = float(np.median(late.values if len(late) >= 3 else train.last(10)))
    if after > before * (1 - limits.overfit_gap) and run.loss.falls:
        return None  # both rise: that is another ailment
    step = int(line.steps[at])
    # Near zero, a loss may double and mean nothing.
    slight = run.loss.falls and now - best < limits.overfit_least * run.loss.start
    better = slight or _accuracy_improves(run, step)
    by_heart = _by_heart(run, line, limits) if better else None
    if by_heart is not None:
        return by_heart
    ahead = outlook(run, limits.outlook_off)
    return finding(
        __name__,
        run,
        severity=WARNING if not better else INFO,
        sites=[ROOT],
        first_step=step,
        evidence=[
            evidence(
                f"validation loss {num(now)}, {num(best)} at its best (step {step}): "
                f"+{share(now / best - 1)}, healthy is below +{share(limits.overfit_rise)}",
                Key("eval", run.validation_split or "val", "loss"),
                step=int(line.steps[-1]),
                value=now / best - 1,
                threshold=limits.overfit_rise,
            ),
            evidence(
                f"the training loss fell from {num(before)} to {num(after)} meanwhile",
                Key.scalar(run.loss.name),
                step=run.last_step,
                value=after,
            ),
            ahead.evidence,
        ],
        explanation=(
            f"Since step {step} the validation loss rises while the training loss falls: what is "
            f"learned since then does not carry over to new data.{ahead.sentence}"
        ),
        causes=[
            cause(
                "more steps than the data supports", "training data are seen many times over", 0.6
            ),
            cause(
                "too little regularisation for this model size",
                "dropout or weight decay moves the minimum to later and lower",
                0.5,
            ),
            cause(
                "validation data differ from the training data",
                "a random split of the training data does not show it",
                0.2,
            ),
        ],
        fix=f"{_stop(run, step)}, or use weight decay 0.1 and dropout 0.1 … 0.3",
        change=changed("max_steps", run.last_step, step),
        confidence=0.85,
    )


def _stop(run: Run, step: int) -> str:
    """What to do where validation was best at that step."""
    if run.ended:
        return (
            f"take the checkpoint of step {step}, the best on validation, and stop there next time"
        )
    return f"stop now and take the checkpoint of step {step}, the best on validation"


def _by_heart(run: Run, line: Line, limits: Thresholds) -> Finding | None:
    """Training solved, validation not, and no better for the later half of the run."""
    start, late = run.loss.start, float(np.median(line.last(2)))
    steps = run.loss.levels.steps[run.loss.levels.values < limits.overfit_solved * start]
    if not run.loss.falls or run.loss.now > limits.overfit_solved * start or not len(steps):
        return None
    half = line.values[: len(line) // 2 + 1]
    at = int(np.argmin(half))
    if late < limits.overfit_unsolved * start or late < 0.95 * half[at]:
        return None
    since = max(int(steps[0]), int(line.steps[at]))
    best = validation(run)
    stop = f"stop at step {since}"
    if best is not None and not best.improves:
        stop = f"take the checkpoint of step {best.step}, the best on validation,"
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=[ROOT],
        first_step=since,
        evidence=[
            evidence(
                f"the training loss is at {num(run.loss.now)}, the validation loss at {num(late)}: "
                f"{share(late / start)} of where training began, healthy is below "
                f"{share(limits.overfit_unsolved)} when training is solved",
                Key("eval", run.validation_split or "val", "loss"),
                step=int(line.steps[-1]),
                value=late / start,
                threshold=limits.overfit_unsolved,
            ),
            evidence(f"it is hardly better than at step {int(line.steps[at])}"),
            *([best.evidence] if best is not None else []),
        ],
        explanation=(
            f"Since step {since} the training data are known by heart, and only a part of what was "
            "learned carries over to new data."
        ),
        causes=[
            cause("too few data for this model", "with twice the data the gap is smaller", 0.6),
            cause(
                "too little regularisation for this model size",
                "dropout, weight decay or augmentation lowers the validation loss",
                0.5,
            ),
            cause(
                "validation data differ from the training data",
                "a random split of the training data does not show it",
                0.2,
            ),
        ],
        fix=f"get more data or augment them; otherwise {stop} and use weight decay 0.1 and dropout "
        "0.1 … 0.3",
        change={"stop_at": since, "weight_decay": {"to": 0.1}},
        confidence=0.75,
    )


def _accuracy_improves(run: Run, step: int) -> bool:
    for (split, name), line in run.evals.items():
        if split == run.validation_split and "acc" in name.lower() and len(line) >= 4:
            before = line.until(step).values
            return bool(len(before) and np.median(line.last(2)) > before.max() + 0.005)
    return False
