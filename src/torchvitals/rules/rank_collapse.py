"""A weight matrix has collapsed to a few directions.

**Shows as** a stable rank ‖W‖²_F/σ₁² near 1.

**Why it hurts**: everything the layer puts out lies on a line.

**Judged by** the stable rank of 2-D weights: below 1.5 after having been more than ten times as
large at first; several layers are a warning, one is information.

**Known false alarms**: trained weights have stable ranks of a few per cent of their size, which
is healthy; heads of few classes are small anyway.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places
from torchvitals.rules.thresholds import Thresholds

TITLE = "rank collapse"
NEEDS = ("parameter/stable_rank",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """From many directions to one."""
    table = run.weights("parameter", "stable_rank")
    known = ~np.isnan(table.values)  # matrices take turns
    if not len(known) or known.sum(axis=0).max(initial=0) < 2:
        raise NotChecked("needs two looks at the stable rank of a matrix")
    columns = np.arange(len(table.sites))
    newest = len(known) - 1 - known[::-1].argmax(axis=0)
    first, now = table.values[known.argmax(axis=0), columns], table.values[newest, columns]
    with np.errstate(invalid="ignore"):
        bad = (now < limits.rank_low) & (first > 10 * now)
    sites = [site for site, one in zip(table.sites, bad, strict=True) if one]
    if not sites:
        return None
    at = table.sites.index(sites[0])
    return finding(
        __name__,
        run,
        severity=WARNING if len(sites) > 1 else INFO,
        sites=sites,
        first_step=int(table.steps[int(np.argmax(table.values[:, at] < limits.rank_low))]),
        evidence=[
            evidence(
                f"stable rank {num(float(now[at]))} of {sites[0]}, {num(float(first[at]))} at "
                "first",
                Key("parameter", sites[0], "stable_rank"),
                step=int(table.steps[newest[at]]),
                value=float(now[at]),
                threshold=limits.rank_low,
            ),
        ],
        explanation=f"{places(sites)} have collapsed to about one direction.",
        causes=[
            cause("steps that are too large in one direction", "it happened with a spike", 0.5),
            cause("the task needs no more", "the loss is low and the layer small", 0.4),
        ],
        fix="lower the learning rate by 3, and normalise the layer's input",
        change={"lr_factor": 1 / 3},
        confidence=0.45,
    )
