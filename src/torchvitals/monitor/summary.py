"""The few numbers that stand for all layers: medians, tails and counts, 11 columns in all.

Enough for a foreign tracker, where one series for each parameter would be thousands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchvitals.probes.probe import Notes, blank, to_float32
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


def summarize(notes: Notes, overhead_s: NDArray[np.float64]) -> Floats:
    """(steps, `HEADER`) from the parameters' norms and ratios; NaN ones were not measured."""
    out = blank((len(overhead_s), len(HEADER)))
    for row, norms, ratios in zip(out, notes.gradient_norm, notes.update_ratio, strict=True):
        known = norms[~np.isnan(norms)]
        if len(known):
            row[:4] = spread(known)
            row[4] = np.count_nonzero(known < VANISHING)
            row[5] = np.count_nonzero(known > EXPLODING)
        known = ratios[~np.isnan(ratios)]
        if len(known):
            row[6:10] = spread(known)
    if notes.num_frozen is not None:
        out[:, 10] = notes.num_frozen
    out[:, 11] = overhead_s
    return out


def spread(values: NDArray[np.float64]) -> Floats:
    """Median, 95th percentile by nearest rank (rounded up), minimum and maximum."""
    ordered = np.sort(values)
    rank = max(int(np.ceil(0.95 * len(ordered))) - 1, 0)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return to_float32(np.array([middle, ordered[rank], ordered[0], ordered[-1]]))
