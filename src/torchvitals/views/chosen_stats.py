"""`--stat`: any ranking turned to stats the user names instead of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from torchvitals.record import RunInfo
from torchvitals.views.ranking import Ranking, Values, Verdict, distance, median, not_finite

_HIGHEST = ("_frac", "ratio", "frozen")


def by_stats(ranking: Ranking, stats: Sequence[str]) -> Ranking:
    """The same kind led by the first of `stats`, with columns for all of them."""
    lead = stats[0]
    highest = lead.startswith("num_") or lead.endswith(_HIGHEST)

    def judge(sites: dict[str, Values], info: RunInfo) -> dict[str, Verdict]:
        notes = ranking.judge(sites, info)
        numbers = [values[lead] for values in sites.values() if lead in values]
        middle = median(map(abs, numbers))
        verdicts = {}
        for site, values in sites.items():
            bad, _ = not_finite(values, lead)
            value = values.get(lead, math.nan)
            away = value if highest else distance(abs(value), middle)
            score = (bad, away if math.isfinite(away) or away > 0 else -math.inf)
            verdicts[site] = replace(notes[site], score=score)
        return verdicts

    worst = f"highest {lead}" if highest else f"|{lead}| furthest from the median of all layers"
    return replace(
        ranking, lead=lead, stats=tuple(stats), worst=f"not finite, then {worst}", judge=judge
    )
