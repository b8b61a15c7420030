"""The fixed histogram bins, the same for every tensor, step, rank and run.

Bins are signed and follow the floating-point format: each octave [2^e, 2^(e+1)) is split at
1.5·2^e, so a bin's index is read off the exponent and the first mantissa bit, with no logarithm.

    index   0                1 … 124               125              126    127 … 252
            x ≤ −2^22        (−2^22, −2^−40]       (−2^−40, 0)      x = 0  the mirror image
            overflow         124 half octaves      underflow        zero   for positive x

Range: 2^−40 ≈ 9.1e−13 ≤ |x| < 2^22 ≈ 4.2e6. Smaller non-zero values fall in the underflow bins,
larger finite ones in the overflow bins; NaN and ±Inf are in no bin (they are counted apart).
Because the bins never move, histograms add up exactly over steps, ranks and micro-batches.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_EXPONENT = -40
MAX_EXPONENT = 22
HALF_OCTAVES = 2 * (MAX_EXPONENT - MIN_EXPONENT)
SIDE = HALF_OCTAVES + 2
"""Bins on one side of zero: the half octaves, one underflow, one overflow bin."""
ZERO_BIN = SIDE
NUM_BINS = 2 * SIDE + 1


def magnitude_edges() -> NDArray[np.float64]:
    """The SIDE + 1 edges of |x|: 0, 2^−40, 1.5·2^−40, 2^−39, …, 2^22, inf."""
    octaves = np.arange(MIN_EXPONENT, MAX_EXPONENT)
    halves = np.stack([np.exp2(octaves), 1.5 * np.exp2(octaves)], axis=1).ravel()
    return np.concatenate([[0.0], halves, [np.exp2(MAX_EXPONENT), np.inf]])


def bounds() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lower and upper end of each of the NUM_BINS bins, ascending; the zero bin is [0, 0]."""
    edges = magnitude_edges()
    low = np.concatenate([-edges[:0:-1], [0.0], edges[:-1]])
    high = np.concatenate([-edges[-2::-1], [0.0], edges[1:]])
    return low, high


def bin_index(values: ArrayLike) -> NDArray[np.int64]:
    """The bin of each finite value. The plain definition, for tests and small data."""
    x = np.asarray(values, dtype=np.float64)
    side = np.searchsorted(magnitude_edges(), np.abs(x), side="right") - 1
    return np.where(x == 0, ZERO_BIN, np.where(x > 0, ZERO_BIN + 1 + side, ZERO_BIN - 1 - side))


def percentiles(
    counts: ArrayLike,
    q: ArrayLike,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Percentiles `q` (0…100) of one histogram, or of each line of a 2-D block of them.

    The value is placed inside its bin by the share of the bin's count below it, on a linear scale
    (the half octaves are narrow enough; measured error: docs/statistics.md). `low` and `high` are
    the tensor's exact minimum and maximum: they tighten the outermost bins and close the under-
    and overflow ones. The result is never further off than its bin is wide (a factor of 1.5).
    An empty histogram gives NaN.
    """
    block = np.atleast_2d(np.asarray(counts, dtype=np.float64))
    shares = np.asarray(q, dtype=np.float64).ravel() / 100.0
    bottom, top = bounds()
    lows = np.broadcast_to(-np.inf if low is None else np.asarray(low, np.float64), len(block))
    highs = np.broadcast_to(np.inf if high is None else np.asarray(high, np.float64), len(block))
    out = np.full((len(block), len(shares)), np.nan)
    for line, (row, lo, hi) in enumerate(zip(block, lows, highs, strict=True)):
        total = row.sum()
        if total == 0:
            continue
        cumulative = np.cumsum(row)
        # Rank of the wanted element among total - 1 gaps, as numpy's default method counts them.
        rank = shares * (total - 1) + 0.5
        index = np.minimum(np.searchsorted(cumulative, rank, side="left"), NUM_BINS - 1)
        index = np.maximum(index, np.argmax(row > 0))
        left = np.maximum(bottom[index], lo)
        right = np.minimum(top[index], hi)
        left = np.where(np.isinf(left), -np.exp2(MAX_EXPONENT + 1), left)
        right = np.where(np.isinf(right), np.exp2(MAX_EXPONENT + 1), right)
        inside = (rank - (cumulative[index] - row[index])) / row[index]
        out[line] = left + np.clip(inside, 0.0, 1.0) * (right - left)
    return out[0] if np.ndim(counts) == 1 else out
