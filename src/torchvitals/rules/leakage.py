"""The validation is suspiciously good.

**Shows as** a validation loss clearly below the training loss, long after the start.

**Why it hurts**: validation samples that were trained on say nothing about new data.

**Judged by** the training loss around each evaluation of the later half against the validation
loss: at least 5 % lower in most of them, where no dropout or batch norm explains it (20 %
where it might, after five epochs: a model that has seen its data often is better on them than on
new ones, dropout or not).

**Known false alarms**: strong augmentation, label smoothing or mixup make the training loss
higher than it is; an easier validation set.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import share
from torchvitals.rules.thresholds import Thresholds

TITLE = "leakage suspected"
NEEDS = ("loss", "validation")


LOW = 0.05
"""A loss below this share of its start moves by as much from one step to the next."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Validation below training, evaluation after evaluation."""
    line, train = run.validation_loss.finite, run.loss.finite
    if len(line) < limits.leak_evals:
        raise NotChecked(f"needs {limits.leak_evals} evaluations")
    if not run.loss.falls or run.loss.fallen < 0.2:
        return None
    gaps = []
    late = range(len(line) // 2, len(line))
    for at in late:
        step = int(line.steps[at])
        before = int(line.steps[at - 1]) if at else run.first_step
        width = max(3, (step - before) // 3)
        near = train.values[(train.steps > step - width) & (train.steps <= step + width)]
        if len(near) >= 3:
            # The mean, as the validation's loss is one.
            gaps.append(1.0 - float(line.values[at]) / max(float(np.mean(near)), 1e-30))
    if len(gaps) < 3:
        return None
    gap = float(np.median(gaps))
    shaky = run.model.has_type("Dropout", "BatchNorm")
    if shaky and _passes(run) < limits.leak_passes:
        return None  # dropout alone explains it while nothing was seen often
    solved = run.loss.now < LOW * run.loss.start
    limit = limits.leak_gap_dropout if shaky or solved else limits.leak_gap
    if gap < limit or float(np.mean(np.array(gaps) > 0)) < 0.7:
        return None
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=[ROOT],
        first_step=int(line.steps[late[0]]),
        evidence=[
            evidence(
                f"the validation loss is {share(gap)} below the training loss in the later half "
                f"of the run, suspicious from {share(limit)}",
                Key("eval", run.validation_split or "val", "loss"),
                step=int(line.steps[-1]),
                value=gap,
                threshold=limit,
            ),
        ],
        explanation=(
            "New data are predicted better than those the model was trained on: the validation set "
            "probably holds samples of the training set."
        ),
        causes=[
            cause(
                "validation samples are in the training set",
                "hash all samples of both: they have common ones",
                0.6,
            ),
            cause(
                "the validation set is easier, or the training loss carries augmentation or "
                "dropout",
                "the training set evaluated in eval mode has the same loss",
                0.5,
            ),
        ],
        fix="compare hashes of both sets and split by group (user, document, patient), not by row",
        change={"deduplicate": ["train", "val"]},
        confidence=0.55,
    )


def _passes(run: Run) -> float:
    """How many times the data were seen; infinite where epochs are not told."""
    begun = len({event.step for event in run.events("epoch")})
    return float(begun) if begun else float("inf")
