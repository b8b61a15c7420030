"""The few numbers that stand for all layers: medians, tails and counts, 11 columns in all.

Enough for a foreign tracker, where one series for each parameter would be thousands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchvitals.probes.probe import Notes, blank, to_float32
from torchvitals.record import MISSING, Floats, Key

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
    norms, ratios = notes.gradient_norm, notes.update_ratio
    if norms.shape[1]:
        out[:, :4] = spread(norms)
        known = ~np.isnan(norms).all(axis=1)
        out[known, 4] = np.count_nonzero(norms[known] < VANISHING, axis=1)
        out[known, 5] = np.count_nonzero(norms[known] > EXPLODING, axis=1)
    if ratios.shape[1]:
        out[:, 6:10] = spread(ratios)
    if notes.num_frozen is not None:
        out[:, 10] = notes.num_frozen
    out[:, 11] = overhead_s
    return out


def spread(table: NDArray[np.float64]) -> Floats:
    """Median, 95th percentile by nearest rank (rounded up), minimum and maximum of each line.

    NaN entries were not measured; a line of nothing else is not measured either.
    """
    ordered = np.sort(table, axis=1)  # NaN goes last
    num = np.count_nonzero(~np.isnan(table), axis=1)
    lines = np.arange(len(table))
    last = np.maximum(num - 1, 0)
    middle = (ordered[lines, last // 2] + ordered[lines, np.minimum(num // 2, last)]) / 2
    tail = ordered[lines, np.maximum(np.ceil(0.95 * num).astype(np.intp) - 1, 0)]
    out = to_float32(np.stack([middle, tail, ordered[:, 0], ordered[lines, last]], axis=1))
    out[num == 0] = MISSING
    return out
