"""The few numbers that stand for all layers: medians, tails and counts, 11 columns in all.

Enough for a foreign tracker, where one series for each parameter would be thousands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchvitals.probes.probe import blank, to_float32
from torchvitals.record import Floats, Key

VANISHING = 1e-7
EXPLODING = 1e2

SPREAD = ("median", "p95", "min", "max")
HEADER = (
    *(Key("summary", "gradient_norm", stat) for stat in SPREAD),
    Key("summary", "gradient_norm", "num_vanishing"),
    Key("summary", "gradient_norm", "num_exploding"),
    *(Key("summary", "update_ratio", stat) for stat in SPREAD),
    Key("summary", "update_ratio", "num_frozen"),
    Key("summary", "monitor", "overhead_s"),
)


def summarize(
    gradient_norm: NDArray[np.float64],
    update_ratio: NDArray[np.float64],
    num_frozen: int | None,
    overhead_s: float,
) -> Floats:
    """Values of `HEADER` from the parameters' norms and ratios; NaN ones were not measured."""
    out = blank(len(HEADER))
    norms = gradient_norm[~np.isnan(gradient_norm)]
    if len(norms):
        out[:4] = spread(norms)
        out[4] = np.count_nonzero(norms < VANISHING)
        out[5] = np.count_nonzero(norms > EXPLODING)
    ratios = update_ratio[~np.isnan(update_ratio)]
    if len(ratios):
        out[6:10] = spread(ratios)
    if num_frozen is not None:
        out[10] = num_frozen
    out[11] = overhead_s
    return out


def spread(values: NDArray[np.float64]) -> Floats:
    """Median, 95th percentile by nearest rank (rounded up), minimum and maximum."""
    ordered = np.sort(values)
    rank = max(int(np.ceil(0.95 * len(ordered))) - 1, 0)
    middle = np.median(ordered)
    return to_float32(np.array([middle, ordered[rank], ordered[0], ordered[-1]]))
