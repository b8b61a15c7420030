"""Drawing: long series and wide matrices, thinned without losing a spike or a NaN.

Where a bucket is at least as long as a pyramid's cell (64 rows), whole blocks are drawn from
their pyramids; the rest, and everything that was written twice, from the values themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.row import MISSING, Floats, is_missing
from torchvitals.store import merge, pyramid
from torchvitals.store.answers import Envelope
from torchvitals.store.codec import Ints
from torchvitals.store.merge import View
from torchvitals.store.source import Source


def envelope_of_values(steps: Ints, values: Floats, points: int) -> Envelope:
    """The envelope of a series that is in memory."""
    return _envelope(pyramid.from_values(steps, values[:, None]), points)


def envelope(source: Source, found: Sequence[View], number: int, points: int) -> Envelope:
    """The envelope of a stored column."""
    rows = sum(_num_rows(source, view) for view in found)
    if rows < points * pyramid.CELL_ROWS or merge.conflict(source, found, [number]):
        return envelope_of_values(*merge.column(source, found, number), points)
    cells = pyramid.join(
        [_cells(source, view, [view.piece.layout.position[number]]) for view in found]
    )
    return _envelope(cells, points)


def peaks(
    source: Source, found: Sequence[View], columns: Sequence[int], points: int
) -> tuple[Ints, Floats]:
    """Buckets × columns: the value of largest magnitude, NaN when one is among them."""
    if not found:
        return merge.matrix(source, found, columns)
    steps = merge.distinct(
        np.concatenate([source.axis(view.piece).steps[view.rows(source)] for view in found])
    )
    length = -(-len(steps) // points)
    if length < pyramid.CELL_ROWS or merge.conflict(source, found, columns):
        return thinned(*merge.matrix(source, found, columns), points)
    edges = steps[::length]
    out = np.full((len(edges), len(columns)), MISSING, dtype=np.float32)
    for view in found:
        positions, at = merge.chosen_columns(view.piece.layout, columns)
        _raise_to(out, edges, at, _cells(source, view, positions))
    measured = ~is_missing(out).all(axis=1)
    return edges[measured], out[measured]


def thinned(steps: Ints, values: Floats, points: int) -> tuple[Ints, Floats]:
    """The same for a matrix that is in memory."""
    length = -(-len(steps) // points)
    if length <= 1:
        return steps, values
    cells = pyramid.merge(pyramid.from_values(steps, values), np.arange(len(steps)) // length)
    return cells.first_step, pyramid.peak(cells)


def stronger(ours: Floats, theirs: Floats) -> Floats:
    """Element by element the larger magnitude; a NaN beats everything, MISSING nothing."""
    take = (np.abs(theirs) > np.abs(ours)) | np.isnan(theirs)
    take = (take & ~is_missing(theirs) & ~(np.isnan(ours))) | is_missing(ours)
    return np.where(take, theirs, ours)


def _raise_to(out: Floats, edges: Ints, at: NDArray[np.intp], cells: pyramid.Cells) -> None:
    if not len(cells.first_step):
        return
    buckets = np.searchsorted(edges, cells.first_step, side="right") - 1
    merged = pyramid.peak(pyramid.merge(cells, buckets))
    lines = np.ix_(np.unique(buckets), at)
    out[lines] = stronger(out[lines], merged)


def _cells(source: Source, view: View, positions: list[int]) -> pyramid.Cells:
    """The view's cells, sorted by their first step."""
    piece = view.piece
    if piece.block is not None and piece.ordered and view.whole:
        return source.cells(piece, positions)
    rows = view.rows(source)
    steps = source.axis(piece).steps[rows]
    cells = pyramid.from_values(steps, source.values(piece, positions, keep=False)[rows])
    return pyramid.select(cells, np.argsort(steps, kind="stable"))


def _envelope(cells: pyramid.Cells, points: int) -> Envelope:
    cells = pyramid.select(cells, np.flatnonzero(cells.num_values[:, 0]))
    cells = pyramid.select(cells, np.argsort(cells.first_step, kind="stable"))
    if len(cells.first_step):
        ends = np.cumsum(cells.num_values[:, 0])
        buckets = (ends - cells.num_values[:, 0]) * min(points, int(ends[-1])) // ends[-1]
        cells = pyramid.merge(cells, buckets)
    return Envelope(
        cells.first_step,
        cells.low[:, 0],
        cells.high[:, 0],
        cells.last[:, 0],
        cells.flags[:, 0] != 0,
        cells.num_values[:, 0],
    )


def _num_rows(source: Source, view: View) -> int:
    if view.whole:
        return view.piece.num_rows
    return len(source.axis(view.piece).steps[view.rows(source)])
