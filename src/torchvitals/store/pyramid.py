"""Pyramids: what is needed to draw a long series without reading all of it.

A sealed block keeps, for every column and every 64 rows (a cell), the lowest and the highest
finite value, the last value, how many there are, and whether a NaN, +Inf or −Inf is among them.
Cells merge into larger ones exactly, so a drawing made from them shows every spike and every NaN.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.row import MISSING, MISSING_BITS, Floats
from torchvitals.store.codec import Ints

CELL_ROWS: Final = 64

HAS_NAN: Final = 1
HAS_INF: Final = 2
HAS_MINUS_INF: Final = 4


class Cells(NamedTuple):
    """Summaries of consecutive rows; all arrays but the first two have shape (cells, columns)."""

    first_step: Ints
    last_step: Ints
    low: Floats
    """Lowest finite value; NaN when there is none."""
    high: Floats
    last: Floats
    """Last value that was measured, finite or not; MISSING when there is none."""
    flags: NDArray[np.uint8]
    num_values: Ints
    """Values that were measured."""


def from_values(steps: Ints, values: Floats) -> Cells:
    """Every row a cell of its own; `values` has shape (rows, columns)."""
    finite = np.isfinite(values)
    alone = np.where(finite, values, np.float32(np.nan))
    missing = _missing(values)
    return Cells(steps, steps, alone, alone, values, _flags(values, missing), (~missing) * 1)


def summarise(steps: Ints, values: Floats) -> Cells:
    """Cells of `CELL_ROWS` rows; the last one may be shorter."""
    whole = len(values) // CELL_ROWS * CELL_ROWS
    pieces = [values[:whole].reshape(-1, CELL_ROWS, values.shape[1])]
    if whole < len(values):
        pieces.append(values[whole:][None])
    merged = [_summary(piece) for piece in pieces]
    first, last = cell_steps(steps)
    low, high, final, flags, count = (np.concatenate(x) for x in zip(*merged, strict=True))
    return Cells(first, last, low, high, final, flags, count)


def cell_steps(steps: Ints) -> tuple[Ints, Ints]:
    """First and last step of each cell of a block."""
    ends = np.minimum(np.arange(CELL_ROWS, len(steps) + CELL_ROWS, CELL_ROWS), len(steps)) - 1
    return steps[::CELL_ROWS], steps[ends]


def num_cells(rows: int) -> int:
    """Cells of a block of that many rows."""
    return -(-rows // CELL_ROWS)


def select(cells: Cells, chosen: NDArray[np.intp]) -> Cells:
    """Some of the cells."""
    fields: list[NDArray[Any]] = [field[chosen] for field in cells]
    return Cells(*fields)


def join(cells: list[Cells]) -> Cells:
    """One after the other."""
    fields: list[NDArray[Any]] = [np.concatenate(many) for many in zip(*cells, strict=True)]
    return Cells(*fields)


def widen(cells: Cells, at: NDArray[np.intp], width: int) -> Cells:
    """The same cells with more columns: theirs stand at `at`, the others hold nothing."""
    if len(at) == width and bool((at == np.arange(width)).all()):
        return cells
    shape = (len(cells.first_step), width)
    low, high = (np.full(shape, np.nan, dtype=np.float32) for _ in range(2))
    last = np.full(shape, MISSING, dtype=np.float32)
    flags, count = np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.int64)
    low[:, at], high[:, at], last[:, at] = cells.low, cells.high, cells.last
    flags[:, at], count[:, at] = cells.flags, cells.num_values
    return Cells(cells.first_step, cells.last_step, low, high, last, flags, count)


def merge(cells: Cells, buckets: Ints) -> Cells:
    """Merge neighbours with the same bucket number; the numbers must not decrease."""
    starts = np.flatnonzero(np.diff(buckets, prepend=buckets[:1] - 1))
    # Cells of two layouts may overlap: the last value is that of the cell that ends last.
    order = np.argsort(cells.last_step, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    best = np.maximum.reduceat(np.where(cells.num_values > 0, rank[:, None], -1), starts, axis=0)
    last = np.take_along_axis(cells.last[order], np.maximum(best, 0), axis=0)
    return Cells(
        cells.first_step[starts],
        np.maximum.reduceat(cells.last_step, starts),
        np.fmin.reduceat(cells.low, starts, axis=0),
        np.fmax.reduceat(cells.high, starts, axis=0),
        np.where(best < 0, MISSING, last),
        np.bitwise_or.reduceat(cells.flags, starts, axis=0),
        np.add.reduceat(cells.num_values, starts, axis=0),
    )


def peak(cells: Cells) -> Floats:
    """The value of largest magnitude; NaN when one is among them, MISSING when nothing is."""
    value = np.where(np.abs(cells.low) > np.abs(cells.high), cells.low, cells.high)
    value = np.where(cells.flags & HAS_MINUS_INF, np.float32(-np.inf), value)
    value = np.where(cells.flags & HAS_INF, np.float32(np.inf), value)
    value = np.where(cells.flags & HAS_NAN, np.float32(np.nan), value)
    return np.where(cells.num_values == 0, MISSING, value).astype(np.float32, copy=False)


_Summary = tuple[Floats, Floats, Floats, NDArray[np.uint8], Ints]


def _summary(cube: Floats) -> _Summary:
    """Summaries over axis 1 of (cells, rows, columns)."""
    cells, rows, columns = cube.shape
    low, high, last = cube.min(axis=1), cube.max(axis=1), cube[:, -1].copy()
    flags = np.zeros((cells, columns), dtype=np.uint8)
    count = np.full((cells, columns), rows, dtype=np.int64)
    # min and max are non-finite exactly where the cell holds something that is not finite.
    odd = ~(np.isfinite(low) & np.isfinite(high)).all(axis=0)
    if odd.any():
        low[:, odd], high[:, odd], last[:, odd], flags[:, odd], count[:, odd] = _careful(
            cube[:, :, odd]
        )
    return low, high, last, flags, count


def _careful(cube: Floats) -> _Summary:
    finite = np.isfinite(cube)
    missing = _missing(cube)
    low = np.where(finite, cube, np.float32(np.inf)).min(axis=1)
    high = np.where(finite, cube, np.float32(-np.inf)).max(axis=1)
    none = ~finite.any(axis=1)
    low[none] = high[none] = np.nan
    count = (~missing).sum(axis=1)
    behind = np.argmax(~missing[:, ::-1], axis=1)
    at = np.where(count > 0, cube.shape[1] - 1 - behind, 0)
    last = np.take_along_axis(cube, at[:, None], axis=1)[:, 0]
    flags = np.bitwise_or.reduce(_flags(cube, missing), axis=1)
    return low, high, np.where(count > 0, last, MISSING), flags, count


def _missing(values: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.ascontiguousarray(values).view(np.uint32) == MISSING_BITS)


def _flags(values: Floats, missing: NDArray[np.bool_]) -> NDArray[np.uint8]:
    nan = np.isnan(values) & ~missing
    return (
        nan * np.uint8(HAS_NAN)
        | np.isposinf(values) * np.uint8(HAS_INF)
        | np.isneginf(values) * np.uint8(HAS_MINUS_INF)
    ).astype(np.uint8)
