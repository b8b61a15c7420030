"""Updates point against the gradient's descent.

**Shows as** a cosine between Δw and −g below zero for many steps.

**Why it hurts**: the steps climb the loss; momentum or weight decay has the upper hand.

**Judged by** the median cosine of each weight over the last 16 monitored steps: below −0.1 in
half of the weights, with steps that are not tiny.

**Known false alarms**: `maximize=True` and optimizers with their own idea of descent; momentum
after a changed learning rate, for a short while.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num
from torchvitals.rules.thresholds import Thresholds

TITLE = "update is no descent"
NEEDS = ("update/cosine",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Most weights step uphill."""
    table, sizes = run.weights("update", "cosine"), run.weights("update", "ratio")
    if len(table.steps) < limits.descent_checks:
        raise NotChecked(f"needs {limits.descent_checks} monitored steps")
    if run.model.option("maximize"):
        return None
    typical = table.typical(limits.descent_checks)
    known = np.isfinite(typical)
    with np.errstate(invalid="ignore"):
        uphill = typical < limits.descent_cosine
    ratio = float(np.nanmedian(sizes.typical(8))) if sizes else 0.0
    if not known.any() or uphill.sum() < 0.5 * known.sum() or ratio < limits.descent_ratio:
        return None
    sites = [site for site, up in zip(table.sites, uphill, strict=True) if up]
    worst = float(np.nanmedian(typical[uphill]))
    lr = run.lr_now
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=sites,
        first_step=int(table.steps[-limits.descent_checks]),
        evidence=[
            evidence(
                f"cosine of Δw and −g is {num(worst)} in {len(sites)} of {int(known.sum())} "
                f"weights, healthy is above 0",
                Key("update", sites[0], "cosine"),
                step=int(table.steps[-1]),
                value=worst,
                threshold=limits.descent_cosine,
            ),
            evidence(f"the median weight moves by {num(ratio)} of itself a step"),
        ],
        explanation="Most updates point uphill: the loss is not what moves the weights.",
        causes=[
            cause(
                "momentum from before points the other way and steps are large",
                "a lower learning rate turns the cosine positive",
                0.5,
            ),
            cause("weight decay is larger than the gradient", "weight norms shrink steadily", 0.4),
            cause(
                "the gradients' sign is wrong (maximising the loss)",
                "the loss rises steadily from the first step",
                0.3,
            ),
        ],
        fix=f"lower lr from {num(lr)} to {num(nice(lr / 3))} and reset the optimizer's state",
        change=changed("lr", lr, nice(lr / 3)),
        confidence=0.6,
    )
