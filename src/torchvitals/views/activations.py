"""Activations, the worst first: not finite, dead units, saturated, spread far from 1."""

from __future__ import annotations

import math

from torchvitals.record import RunInfo
from torchvitals.views.ranking import Ranking, Values, Verdict, distance, not_finite


def judge(sites: dict[str, Values], _info: RunInfo) -> dict[str, Verdict]:
    """Score: (non-finite elements, tenths dead, tenths saturated, |log std|).

    Tenths, so that a unit or two more in one layer does not outweigh everything after it.
    """
    verdicts = {}
    for site, values in sites.items():
        bad, note = not_finite(values, "std")
        dead, ended = _tenths(values, "dead_frac"), _tenths(values, "saturated_frac")
        if not note:
            note = "dead units" if dead else "saturated" if ended else ""
        away = distance(values.get("std", math.nan), 1.0)
        verdicts[site] = Verdict((bad, dead, ended, away), note)
    return verdicts


def _tenths(values: Values, stat: str) -> float:
    share = values.get(stat, 0.0)
    return math.floor(10 * share + 1e-6) if math.isfinite(share) else 0.0


ACTIVATIONS = Ranking(
    kind="activation",
    title="Activations",
    worst="not finite, dead units, saturated (in tenths), then std furthest from 1",
    lead="std",
    judged="std",
    stats=("std", "mean", "dead_frac", "saturated_frac", "zero_frac", "min", "max"),
    mark="std",
    judge=judge,
)
