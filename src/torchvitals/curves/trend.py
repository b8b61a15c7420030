"""`trend_of`: whether a loss is falling, flat or rising lately.

The last fifth of the points is compared with the fifth before it. Each fifth is cut into blocks of
neighbouring points and each block is represented by its median: one spike moves nothing, and noise
that hangs together over a few points is not mistaken for many independent witnesses. The change
counts when it is `SURE` standard errors of the blocks or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from torchvitals.curves.series import Array, clean

FEWEST = 20
"""Points on each side of the comparison."""
SURE = 3.5
"""With 5 to 10 blocks on each side, chance alone gets here in 1 % of flat noisy curves or fewer."""
STILL = 1e-9
"""Relative changes below this are rounding."""

Word: TypeAlias = Literal["falling", "flat", "rising", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """Which way a curve goes lately."""

    word: Word
    change_per_1000: float
    """Relative change in 1000 steps: −0.02 is 2 % lower. NaN when unknown or relative to zero."""


def trend_of(steps: ArrayLike, values: ArrayLike) -> Direction:
    """Compare the last fifth of the points (at least 20) with the one before.

    "unknown" when there are fewer than 40 finite points, or when the series ends in more NaN or Inf
    than a comparison would need points.
    """
    series = clean(steps, values)
    size = max(FEWEST, len(series) // 5)
    if len(series) < 2 * FEWEST or series.num_bad_last >= FEWEST:
        return Direction(word="unknown", change_per_1000=float("nan"))
    later, before = slice(-size, None), slice(-2 * size, -size)
    old, old_error = _level(series.values[before])
    new, new_error = _level(series.values[later])
    change = new - old
    run = float(np.mean(series.steps[later]) - np.mean(series.steps[before]))
    per_1000 = change / abs(old) * 1000.0 / run if old else float("nan")
    sure = abs(change) > max(SURE * float(np.hypot(old_error, new_error)), STILL * abs(old))
    word: Word = "flat" if not sure else "falling" if change < 0 else "rising"
    return Direction(word=word, change_per_1000=per_1000)


def _level(values: Array) -> tuple[float, float]:
    """The mean of the blocks' medians, and its standard error."""
    blocks = np.array_split(values, int(np.clip(len(values) // 4, 5, 10)))
    medians = np.array([np.median(block) for block in blocks])
    return float(medians.mean()), float(medians.std(ddof=1) / np.sqrt(len(medians)))
