"""Adam's second moments, the worst first: v lags behind the gradients, or ε decides the step."""

from __future__ import annotations

import math

from torchvitals.record import RunInfo
from torchvitals.views.limits import EPSILON_RULES, SQUARES_LAG
from torchvitals.views.ranking import Ranking, Values, Verdict, not_finite


def judge(sites: dict[str, Values], _info: RunInfo) -> dict[str, Verdict]:
    """Score: (not finite, how far above the lag limit, how far below the ε limit, g²/v itself)."""
    verdicts = {}
    for site, values in sites.items():
        lag = values.get("g2_over_v_rms", math.nan)
        margin = values.get("sqrt_v_over_eps", math.nan)
        bad, note = not_finite(values, "g2_over_v_rms")
        if not note and lag > SQUARES_LAG:
            note = "v lags behind"
        elif not note and margin < EPSILON_RULES:
            note = "ε rules"
        over = max(lag / SQUARES_LAG - 1, 0.0) if math.isfinite(lag) else 0.0
        under = max(1 - margin / EPSILON_RULES, 0.0) if math.isfinite(margin) else 0.0
        verdicts[site] = Verdict((bad, over, under, lag if math.isfinite(lag) else 0.0), note)
    return verdicts


OPTIMIZER = Ranking(
    kind="optimizer",
    title="Optimizer state",
    worst=f"√(g²/v) above {SQUARES_LAG}, then √v/ε below {EPSILON_RULES:.0f}",
    lead="g2_over_v_rms",
    judged="g2_over_v_rms",
    stats=("g2_over_v_rms", "sqrt_v_over_eps"),
    mark="g2_over_v_rms",
    judge=judge,
)
