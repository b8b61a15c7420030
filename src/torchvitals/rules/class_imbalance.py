"""One class is nearly all of the data.

**Shows as** a loss that falls at once to a low level, while rare classes are never predicted.

**Why it hurts**: always answering the frequent class is almost right; the rare ones are not
learned.

**Judged by** the share of the most frequent target: above 90 % with two to twenty classes; or
losses by category that are ten times apart.

**Known false alarms**: language models have frequent tokens: more than twenty classes are not
judged.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "class imbalance"
NEEDS = ()


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Targets, then losses by category."""
    if not run.has("criterion", "top_target_frac") and not run.has("category", "loss"):
        raise NotChecked("neither targets of a classification nor losses by category were seen")
    return _targets(run, limits) or _categories(run, limits)


def _targets(run: Run, limits: Thresholds) -> Finding | None:
    for fn in run.sites("criterion", "top_target_frac"):
        line = run.line("criterion", fn, "top_target_frac").finite
        classes = run.line("criterion", fn, "num_classes").finite
        rare = run.line("criterion", fn, "rare_target_frac").finite
        num_classes = float(classes.values[-1]) if classes else 2.0
        if len(line) < 3 or num_classes > limits.imbalance_classes:
            continue
        top = float(np.mean(line.values))
        if top < limits.imbalance_top or top >= 1.0 - 1e-9:
            continue
        least = float(rare.values[-1]) if rare else 1.0 - top
        weight = top / max(least, 1e-6)
        return finding(
            __name__,
            run,
            severity=WARNING,
            sites=[ROOT],
            first_step=int(line.steps[0]),
            evidence=[
                evidence(
                    f"{share(top)} of the targets are one class of {num(num_classes)}, even "
                    "would be "
                    f"{share(1 / num_classes)}",
                    Key("criterion", fn, "top_target_frac"),
                    step=int(line.steps[-1]),
                    value=top,
                    threshold=limits.imbalance_top,
                ),
                evidence(f"the rarest class has {share(least)}"),
            ],
            explanation=(
                f"{share(top)} of the labels are the same class: a model that always says so is "
                "right "
                f"{share(top)} of the time and has learned nothing."
            ),
            causes=[
                cause("the data are imbalanced", "the label histogram of the whole set", 0.85),
                cause("labels are wrong (a default value)", "samples of the class by eye", 0.2),
            ],
            fix=f"weight the rare classes by up to {num(weight)} (weight= of the loss), or "
            "sample evenly "
            "(WeightedRandomSampler); judge by balanced accuracy",
            change={"class_weight": {"rare": weight}},
            confidence=0.85,
        )
    return None


def _categories(run: Run, limits: Thresholds) -> Finding | None:
    table = run.table("category", "loss")
    table = table.pick([site for site in table.sites if ":" not in site])
    if len(table.sites) < 2 or len(table.sites) > limits.imbalance_classes or len(table.steps) < 2:
        return None
    typical = table.typical(3)
    good = typical[np.isfinite(typical) & (typical > 0)]
    if len(good) < 2 or good.max() / np.median(good) < limits.imbalance_factor:
        return None
    if good.max() < 0.2 * run.loss.start:
        return None
    worst = table.sites[int(np.nanargmax(typical))]
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=[worst],
        first_step=int(table.steps[0]),
        evidence=[
            evidence(
                f"the loss of {worst} is {num(float(good.max()))}, the median of all is "
                f"{num(float(np.median(good)))}",
                Key("category", worst, "loss"),
                step=int(table.steps[-1]),
                value=float(good.max() / np.median(good)),
                threshold=limits.imbalance_factor,
            ),
        ],
        explanation=f"{worst} is learned far worse than the other categories.",
        causes=[
            cause("it is rare in the data", "its number of samples is far below the others'", 0.6),
            cause("its labels are wrong", "look at twenty samples of it", 0.4),
        ],
        fix=f"weight {worst} by 10, or sample it more often",
        change={"class_weight": {worst: 10}},
        confidence=0.6,
    )
