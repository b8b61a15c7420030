"""Scaling exponents: the slope of log RMS on log width, by least squares, with its band over seeds.

A quantity that goes as width^k has slope k. Each seed has a slope of its own; the exponent is their
mean, which is the slope of the geometric means, and the band goes from the lowest to the highest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Exponent:
    """How one term of one module goes with the width, at one step."""

    module: str
    term: str
    step: int
    slope: float
    """NaN when there is none; `reason` says why."""
    low: float
    high: float
    """The lowest and the highest slope of a seed."""
    error: float
    """Largest distance of a point from its line, in log10: 0.3 is a factor of two."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Slope:
    """Slopes of the seeds, summed up."""

    slope: float = nan
    low: float = nan
    high: float = nan
    error: float = nan
    reason: str = ""


def fit(widths: ArrayLike, values: ArrayLike) -> Slope:
    """The slope of `values` (widths, seeds), or (widths,), with its band."""
    x = np.asarray(widths, dtype=np.float64)
    y = np.asarray(values, dtype=np.float64).reshape(len(x), -1)
    why = _no_slope(x, y)
    if why:
        return Slope(reason=why)
    log_x, log_y = np.log10(x), np.log10(y)
    off = log_x - log_x.mean()
    slopes: NDArray[np.float64] = off @ log_y / (off @ off)
    distances = log_y - log_y.mean(axis=0) - np.outer(off, slopes)
    return Slope(
        slope=float(slopes.mean()),
        low=float(slopes.min()),
        high=float(slopes.max()),
        error=float(np.abs(distances).max()),
    )


def _no_slope(widths: NDArray[np.float64], values: NDArray[np.float64]) -> str:
    if len(np.unique(widths)) < 2:
        return "one width only"
    broken = ~np.isfinite(values).all(axis=1)
    if broken.all():
        return "not measured"
    if broken.any():
        return f"not finite at width {widths[broken][0]:.0f}"
    if (values == 0.0).all():
        return "zero"
    zero = (values <= 0.0).any(axis=1)
    return f"zero at width {widths[zero][0]:.0f}" if zero.any() else ""
