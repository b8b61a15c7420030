"""The nine sums of a tensor, how they merge, and what is derived from them. Plain numpy.

A block of sums is a float64 array of shape (…, 9) in the order of `FIELDS`. Merging is exact for
counts, minima and maxima, and float64 addition for the rest: associative up to rounding, with
`identity()` as its neutral element.

    count     elements, non-finite ones included
    sum       Σ x    over the finite elements
    sumsq     Σ x²   over the finite elements
    min, max  over the finite elements (+inf, −inf when there are none)
    zeros     elements equal to zero (both signs)
    nan, posinf, neginf   elements that are not finite
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FIELDS = ("count", "sum", "sumsq", "min", "max", "zeros", "nan", "posinf", "neginf")
COUNT, SUM, SUMSQ, MIN, MAX, ZEROS, NAN, POSINF, NEGINF = range(len(FIELDS))

Sums: TypeAlias = NDArray[np.float64]

STATS = (
    "norm",
    "rms",
    "mean",
    "std",
    "min",
    "max",
    "zero_frac",
    "num_nan",
    "num_posinf",
    "num_neginf",
)
"""What `derive` gives, in the order of its columns."""


def identity(*shape: int) -> Sums:
    """The sums of no elements at all."""
    sums = np.zeros((*shape, len(FIELDS)))
    sums[..., MIN] = np.inf
    sums[..., MAX] = -np.inf
    return sums


def merge(a: Sums, b: Sums) -> Sums:
    """The sums of the union of two disjoint sets of elements."""
    out = a + b
    out[..., MIN] = np.minimum(a[..., MIN], b[..., MIN])
    out[..., MAX] = np.maximum(a[..., MAX], b[..., MAX])
    return out


def merge_groups(sums: Sums, starts: NDArray[np.intp]) -> Sums:
    """Merge runs of lines: line `i` of the result covers lines `starts[i]` to `starts[i + 1]`.

    Lines are the second axis from the end; no run may be empty.
    """
    out = np.add.reduceat(sums, starts, axis=-2)
    out[..., MIN] = np.minimum.reduceat(sums[..., MIN], starts, axis=-1)
    out[..., MAX] = np.maximum.reduceat(sums[..., MAX], starts, axis=-1)
    return out


def finite_sumsq(sums: Sums) -> NDArray[np.float64]:
    """Σ x² of each line; NaN where no element is finite, so that it can't pass for a zero."""
    finite = sums[..., COUNT] - sums[..., NAN] - sums[..., POSINF] - sums[..., NEGINF]
    return np.where(finite > 0, sums[..., SUMSQ], np.nan)


def norms(sums: Sums) -> NDArray[np.float64]:
    """The column `norm` of `derive`, where nothing else is wanted."""
    return np.sqrt(finite_sumsq(sums))


def means(sums: Sums) -> NDArray[np.float64]:
    """The column `mean` of `derive`, where nothing else is wanted."""
    finite = sums[..., COUNT] - sums[..., NAN] - sums[..., POSINF] - sums[..., NEGINF]
    with np.errstate(divide="ignore", invalid="ignore"):
        found: NDArray[np.float64] = sums[..., SUM] / finite
    return found


def derive(sums: Sums) -> NDArray[np.float64]:
    """The columns of `STATS` for each line of sums.

        norm = √Σx²      rms = √(Σx² / n)      mean = Σx / n      std = √(rms² − mean²)

    with n the number of finite elements (std divides by n, not n − 1). A tensor without any finite
    element has NaN for all of these but its counts; its norm is NaN too, not 0.
    """
    # Fields first: numpy is faster on neighbours.
    fields = np.ascontiguousarray(np.moveaxis(sums, -1, 0))
    count, total, sumsq, low, high, zeros, nan, posinf, neginf = fields
    finite = count - nan - posinf - neginf
    out = np.empty((len(STATS), *count.shape))
    norm, rms, mean, std = (out[column, ...] for column in range(4))
    with np.errstate(divide="ignore", invalid="ignore"):
        np.sqrt(sumsq, out=norm)
        square = sumsq / finite
        np.sqrt(square, out=rms)
        np.divide(total, finite, out=mean)
        np.sqrt(np.maximum(square - mean * mean, 0.0), out=std)
        np.divide(zeros, count, out=out[6, ...])
    # Of equal elements the difference is rounding alone.
    std[low == high] = 0.0
    out[4:6] = fields[MIN : MAX + 1]
    out[7:] = fields[NAN:]
    empty = finite <= 0
    if empty.any():
        for column in (0, 4, 5):
            out[column, empty] = np.nan
    return np.moveaxis(out, 0, -1)
