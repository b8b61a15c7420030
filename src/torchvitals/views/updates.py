"""Updates, the worst first: frozen, then the ratio ‖Δw‖ / ‖w‖ furthest outside its band."""

from __future__ import annotations

import math

from torchvitals.record import RunInfo
from torchvitals.views.limits import RATIO_HIGH, RATIO_LOW
from torchvitals.views.ranking import Ranking, Values, Verdict, distance, not_finite

CENTRE = math.sqrt(RATIO_LOW * RATIO_HIGH)
HALF = math.log(RATIO_HIGH / CENTRE)


def judge(sites: dict[str, Values], info: RunInfo) -> dict[str, Verdict]:
    """Score: (non-finite elements, stands still, distance to the band, distance to its middle).

    A trainable parameter that no optimizer holds is never updated, and nothing is measured of it:
    it counts as standing still.
    """
    held = {name for group in info.groups for name in group.parameters}
    verdicts = {}
    for site, values in sites.items():
        if "ratio" not in values:
            lost = bool(held) and site not in held
            verdicts[site] = Verdict((0.0, float(lost)), "in no optimizer" if lost else "")
            continue
        ratio = values["ratio"]
        bad, note = not_finite(values, "ratio")
        frozen = values.get("frozen", 0.0) > 0
        away = distance(ratio, CENTRE)
        if not note:
            note = _note(ratio, frozen=frozen)
        verdicts[site] = Verdict((bad, float(frozen), max(away - HALF, 0.0), away), note)
    return verdicts


def _note(ratio: float, *, frozen: bool) -> str:
    if frozen:
        return "frozen"
    if ratio == 0:
        return "unchanged"
    if ratio < RATIO_LOW:
        return f"below {RATIO_LOW:.0e}"
    return f"above {RATIO_HIGH:.0e}" if ratio > RATIO_HIGH else ""


UPDATES = Ranking(
    kind="update",
    title="Updates",
    worst=f"frozen, then ratio ‖Δw‖/‖w‖ furthest outside {RATIO_LOW:.0e} … {RATIO_HIGH:.0e}",
    lead="ratio",
    judged="ratio",
    stats=("ratio", "norm", "cosine", "lr_ratio", "zero_frac"),
    mark="frozen",
    judge=judge,
)
