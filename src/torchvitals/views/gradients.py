"""Gradients, the worst first: not finite, then furthest from the median norm."""

from __future__ import annotations

import math

from torchvitals.record import RunInfo
from torchvitals.views.limits import EXPLODING, VANISHING
from torchvitals.views.ranking import Ranking, Values, Verdict, distance, median, not_finite


def judge(sites: dict[str, Values], _info: RunInfo) -> dict[str, Verdict]:
    """Score: (number of non-finite elements, |log(norm / median)|)."""
    middle = median(values.get("norm", math.nan) for values in sites.values())
    verdicts = {}
    for site, values in sites.items():
        norm = values.get("norm", math.nan)
        bad, note = not_finite(values, "norm")
        if not note and norm == 0:
            note = "zero"
        elif not note and norm < VANISHING:
            note = "vanishing"
        elif not note and norm > EXPLODING:
            note = "exploding"
        extra = {"vs_median": norm / middle} if middle > 0 and not math.isnan(norm) else {}
        verdicts[site] = Verdict((bad, distance(norm, middle)), note, extra)
    return verdicts


GRADIENTS = Ranking(
    kind="gradient",
    title="Gradients",
    worst="not finite, then norm furthest from the median of all layers",
    lead="norm",
    judged="norm",
    stats=("norm", "vs_median", "rms", "zero_frac", "min", "max"),
    mark="rms",
    judge=judge,
)
