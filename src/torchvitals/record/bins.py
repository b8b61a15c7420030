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

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

MIN_EXPONENT = -40
MAX_EXPONENT = 22
HALF_OCTAVES = 2 * (MAX_EXPONENT - MIN_EXPONENT)
SIDE = HALF_OCTAVES + 2
"""Bins on one side of zero: the half octaves, one underflow, one overflow bin."""
ZERO_BIN = SIDE
NUM_BINS = 2 * SIDE + 1

_FAR = float(2 ** (MAX_EXPONENT + 1))
"""Where the overflow bins end when the data's own extremes are not known."""

Spot: TypeAlias = tuple[NDArray[np.float64], ...]
"""Left end, right end and count of a bin, for each percentile of each line."""


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

    Inside its bin a value is placed by the share of the bin's count below it, under a density that
    leans towards the fuller neighbour (`_lean`; measured error: docs/statistics.md). `low` and
    `high` are the tensor's exact minimum and maximum: they tighten the outermost bins and close
    the under- and overflow ones. The result lies in the bin of the element that has this rank, so
    between −2^22 and 2^22 it is never off by more than a factor of 1.5. No counts give NaN.
    """
    block = np.atleast_2d(np.asarray(counts, dtype=np.float64))
    lines = np.arange(len(block))[:, None]
    cumulative = np.cumsum(block, axis=1)
    total = cumulative[:, -1:]
    # Rank of the wanted element among total − 1 gaps, as numpy's default method counts them.
    shares = np.asarray(q, dtype=np.float64).ravel() / 100.0
    rank = shares * np.maximum(total - 1.0, 0.0) + np.minimum(total, 1.0) / 2.0
    below = [np.count_nonzero(cumulative < one[:, None], axis=1) for one in rank.T]
    index = np.stack(below, axis=1) if below else np.zeros(rank.shape, dtype=np.int64)

    bottom, top = bounds()
    lows, highs = _known(low, -_FAR), _known(high, _FAR)

    def at(i: NDArray[np.int64]) -> Spot:
        """Both ends of bin `i` within the data's range, and its count."""
        left = np.minimum(np.maximum(bottom[i], lows), top[i])
        return left, np.maximum(np.minimum(top[i], highs), left), block[lines, i]

    before, here, after = (at(np.clip(index + shift, 0, NUM_BINS - 1)) for shift in (-1, 0, 1))
    left, right, count = here
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (rank - (cumulative[lines, index] - count)) / count
        lean = _lean(before, here, after)
        # The density 1 + lean·(t − ½) on 0 ≤ t ≤ 1 holds `share` of its mass below t.
        start = 1.0 - lean / 2.0
        t = 2.0 * share / (start + np.sqrt(np.maximum(start * start + 2.0 * lean * share, 0.0)))
    value = np.clip(left + np.clip(t, 0.0, 1.0) * (right - left), left, right)
    out = np.where(total > 0, value, np.nan)
    return out[0] if np.ndim(counts) == 1 else out


def _known(end: ArrayLike | None, otherwise: float) -> NDArray[np.float64]:
    """A line's extreme as a column, or where it is not a number, the end of the bins."""
    given = np.asarray(otherwise if end is None else end, dtype=np.float64).reshape(-1, 1)
    return np.where(np.isfinite(given), given, otherwise)


def _lean(before: Spot, here: Spot, after: Spot) -> NDArray[np.float64]:
    """How much denser the upper end of a bin is than its lower end, in −2…2.

    The slope is that of the parabola through the densities of the three bins, limited (as van
    Leer's MUSCL scheme does) to what both neighbours support: 0 at a peak, at a gap and at the end
    of the data, so that the density is never negative.
    """
    w0, w1, w2 = (right - left for left, right, _ in (before, here, after))
    d0, d1, d2 = (
        np.where(width > 0, spot[2] / width, 0.0)
        for width, spot in ((w0, before), (w1, here), (w2, after))
    )
    down, up = d1 - d0, d2 - d1
    slope = down * (w1 + w2) / (w0 + w1) + up * (w0 + w1) / (w1 + w2)
    slope *= w1 / (w0 / 2.0 + w1 + w2 / 2.0)
    limit = 2.0 * np.minimum(np.abs(down), np.abs(up))
    lean = np.sign(slope) * np.minimum(np.abs(slope), limit) / d1
    return np.where((down * up > 0) & (d1 > 0), np.clip(lean, -2.0, 2.0), 0.0)
