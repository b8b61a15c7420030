"""Parameters, the worst first: not finite, then unlike other tensors of their sort.

Norms grow with the number of elements, so tensors of different sizes are compared by rms, the norm
per element; and only with their like: same type of layer, same name (weight, bias).
"""

from __future__ import annotations

import math

from torchvitals.record import RunInfo
from torchvitals.views.ranking import Ranking, Values, Verdict, distance, median, not_finite


def judge(sites: dict[str, Values], info: RunInfo) -> dict[str, Verdict]:
    """Score: (number of non-finite elements, |log(rms / median rms)|)."""
    known = {p.name: len(p.shape) for model in info.models for p in model.parameters}
    types = {m.name: m.type for model in info.models for m in model.modules}
    sorts = {site: (types.get(site.rpartition(".")[0]), site.rpartition(".")[2]) for site in sites}
    middles = {
        sort: median(
            values.get("rms", math.nan) for site, values in sites.items() if sorts[site] == sort
        )
        for sort in set(sorts.values())
    }
    verdicts = {}
    for site, values in sites.items():
        rms, middle = values.get("rms", math.nan), middles[sorts[site]]
        bad, note = not_finite(values, "norm")
        if not note and rms == 0:
            note = "all zero"
        # Biases often start at zero, and do no harm there.
        away = 0.0 if rms == 0 and (known.get(site) or 1) < 2 else distance(rms, middle)
        extra = {"vs_median": rms / middle} if middle > 0 and not math.isnan(rms) else {}
        verdicts[site] = Verdict((bad, away), note, extra)
    return verdicts


PARAMETERS = Ranking(
    kind="parameter",
    title="Parameters",
    worst="not finite, then rms furthest from the median of its sort (type of layer, name)",
    lead="norm",
    judged="rms",
    stats=("norm", "rms", "vs_median", "zero_frac", "mean", "min", "max"),
    mark="rms",
    judge=judge,
)
