"""Robust deviation of each value from those before it: log values, median and MAD."""

from __future__ import annotations

import numpy as np

from torchvitals.rules.table import Array

FLOOR = 0.05
"""Smallest scale in log units: a series that hardly moves makes no spike of a 10 % change."""


def robust_z(values: Array, window: int = 128, least: int = 16) -> tuple[Array, Array]:
    """For each positive value its z-score and its ratio to the median of the `window` before it.

    z = (log x − median) / (1.4826 · MAD), of the logs before; NaN for the first `least` values and
    for values that are not positive and finite.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where((values > 0) & np.isfinite(values), np.log(values), np.nan)
    num = len(logs)
    middle, scale = np.full(num, np.nan), np.full(num, np.nan)
    for at in range(least, min(window, num)):
        middle[at], scale[at] = _median_mad(logs[:at])
    if num > window:
        before = np.lib.stride_tricks.sliding_window_view(logs[:-1], window)
        with np.errstate(all="ignore"):
            good = np.isfinite(before).all(axis=1)
            rows = before[good]
            medians = np.median(rows, axis=1)
            mads = 1.4826 * np.median(np.abs(rows - medians[:, None]), axis=1)
        middle[window:][good], scale[window:][good] = medians, mads
        for at in (window + np.flatnonzero(~good)).tolist():
            middle[at], scale[at] = _median_mad(logs[at - window : at])
    with np.errstate(invalid="ignore"):
        return (logs - middle) / np.maximum(scale, FLOOR), np.exp(logs - middle)


def _median_mad(logs: Array) -> tuple[float, float]:
    known = logs[np.isfinite(logs)]
    if len(known) < 4:
        return float("nan"), float("nan")
    middle = float(np.median(known))
    return middle, float(1.4826 * np.median(np.abs(known - middle)))
