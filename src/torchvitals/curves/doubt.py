"""When a forecast is not to be trusted, in plain words.

The first reason found is given, the ones that make the fit meaningless before the ones that make
it uncertain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from torchvitals.curves.curve_bins import Bins
from torchvitals.curves.power_law import Fit
from torchvitals.curves.series import Array, Series
from torchvitals.curves.trend import STILL, trend_of

ENOUGH = 30
"""Points a confident forecast needs."""
FARTHEST = 10.0
"""How far ahead a forecast can be confident, in lengths of what was seen."""
SIGNAL = 16.0
"""What a trend must gain over a constant, in mean squared residuals: the 0.1 % tail of chance."""
HIDDEN = "the noise hides any trend"
BENT = 3.0
"""Residuals of the bins that noise cannot explain, in its standard errors."""
MATTERS = 0.01
"""Residuals to speak of, in drops since the first plunge."""
TAIL = 5
"""Points at the end that are enough to see a divergence by."""
SETTLED = 0.02
"""Share of the run after which the first plunge is over."""


def doubt(series: Series, bins: Bins, law: Fit, ahead: float, *, wide: float) -> str:
    """The first reason not to trust the forecast; empty when there is none."""
    return next(_doubts(series, bins, law, ahead, wide), "")


def _doubts(series: Series, bins: Bins, law: Fit, ahead: float, wide: float) -> Iterator[str]:
    if why := few(series) or bad(series):
        yield why
    if _rising(series, bins):
        yield "the loss is rising"
    off = (bins.means - law.at(bins.u, bins.spread)[0]) * np.sqrt(bins.weights)
    mean = np.average(bins.means, weights=bins.weights)
    flat, left = float(bins.weights @ (bins.means - mean) ** 2), float(off @ off)
    if law.a[0] == 0.0 or flat - left < SIGNAL * left / max(len(off) - 4, 1):
        yield HIDDEN
    if ahead > FARTHEST:
        yield f"extrapolates {ahead:.0f}× beyond what was seen"
    start, settled, end = law.at(np.array([0.0, SETTLED, 1.0]))[0]
    if _pattern(off, bins, settled - end):
        yield "the fit leaves a pattern"
    if wide > 0.5 * (start - end):
        yield "the band spans more than half of the drop so far"


def few(series: Series) -> str:
    """Too few points, or none."""
    if len(series) == 0:
        return "values are not finite" if series.num_bad else "no values yet"
    if len(series) < ENOUGH:
        points = "point" if len(series) == 1 else "points"
        return f"only {len(series)} {points}; {ENOUGH} are needed"
    return ""


def bad(series: Series) -> str:
    """Scattered NaN are left out quietly; a run that ends in them, or is half of them, is not."""
    usual = (series.num_bad - series.num_bad_last) / max(len(series), 1)
    if series.num_bad_last >= max(3.0, 5.0 * usual):
        return f"values are not finite: the last {series.num_bad_last}"
    if series.num_bad > len(series):
        total = series.num_bad + len(series)
        return f"values are not finite: {series.num_bad} of {total}"
    return ""


def _rising(series: Series, bins: Bins) -> bool:
    """At the very end, lately, or slowly over the whole run."""
    if _leaving(series) or trend_of(series.steps, series.values).word == "rising":
        return True
    half = len(bins.u) // 2
    slope = np.polyfit(bins.u, bins.means, 1, w=np.sqrt(bins.weights))
    off = bins.means - np.polyval(slope, bins.u)
    error = float(bins.weights @ off**2) / max(len(off) - 2, 1)
    middle = np.average(bins.u, weights=bins.weights)
    strength = float(bins.weights @ (bins.u - middle) ** 2)
    ends = float(np.mean(bins.means[half:]) - np.mean(bins.means[:half]))
    return bool(ends > 0.0 and slope[0] * math.sqrt(strength) > 4.0 * math.sqrt(error))


def _leaving(series: Series) -> bool:
    """The last hundredth lies far above the tenth before it: a run that has just begun to diverge.

    The comparison of fifths sees that late, because the medians it trusts still look calm.
    """
    size = max(TAIL, len(series) // 100)
    before = series.values[-11 * size : -size]
    middle = float(np.median(before))
    scatter = 1.4826 * float(np.median(np.abs(before - middle)))
    return float(np.median(series.values[-size:])) > middle + 4.0 * scatter + STILL * abs(middle)


def _pattern(off: Array, bins: Bins, drop: float) -> bool:
    """Neighbouring bins err the same way, by more than noise explains and enough to matter."""
    if float(np.sqrt(np.mean(off**2))) < BENT:
        return False
    together = float(off[1:] @ off[:-1]) / float(off @ off)
    late = bins.u >= SETTLED
    size = float(np.sqrt(np.mean(off[late] ** 2 / bins.weights[late])))
    return together > 0.5 and size > MATTERS * drop
