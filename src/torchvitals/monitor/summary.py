"""The few numbers that stand for all layers: medians, tails, counts, and the worst few by name.

Enough for a foreign tracker, where one series for each parameter would be thousands: 12 columns,
and for each of the `TOP` largest gradients and smallest update ratios its value and which parameter
it is (its place among the run's parameters; `torchvitals.views.offenders` gives the names).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchvitals.probes.probe import Notes, blank, to_float32
from torchvitals.record import MISSING, Floats, Key

VANISHING = 1e-7
EXPLODING = 1e2

SPREAD = ("median", "p95", "min", "max")
TOP = 5
OFFENDERS = (
    *(
        Key("summary", f"largest_gradient.{k}", stat)
        for k in range(1, TOP + 1)
        for stat in ("norm", "parameter")
    ),
    *(
        Key("summary", f"smallest_update.{k}", stat)
        for k in range(1, TOP + 1)
        for stat in ("ratio", "parameter")
    ),
)
HEADER = (
    *(Key("summary", "gradient_norm", stat) for stat in SPREAD),
    Key("summary", "gradient_norm", "num_vanishing"),
    Key("summary", "gradient_norm", "num_exploding"),
    *(Key("summary", "update_ratio", stat) for stat in SPREAD),
    Key("summary", "update_ratio", "num_frozen"),
    Key("summary", "monitor", "overhead_s"),
    *OFFENDERS,
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
    half = 12 + len(OFFENDERS) // 2
    out[:, 12:half] = worst(-norms, notes.parameters, sign=-1.0)
    out[:, half:] = worst(ratios, notes.parameters)
    return out


def worst(table: NDArray[np.float64], parameters: NDArray[np.intp], sign: float = 1.0) -> Floats:
    """(value, parameter) of the `TOP` smallest entries of each line; NaN was not measured."""
    out = blank((len(table), TOP, 2))
    order = np.argsort(table, axis=1)[:, :TOP]  # NaN goes last
    values = np.take_along_axis(table, order, axis=1)
    known = ~np.isnan(values)
    found = out[:, : values.shape[1]]
    found[..., 0][known] = to_float32(sign * values)[known]
    found[..., 1][known] = parameters[order][known]
    return out.reshape(len(table), -1)


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
