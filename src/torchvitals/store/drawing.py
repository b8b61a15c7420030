"""Drawing: long series and wide matrices, thinned without losing a spike or a NaN.

Where a bucket is at least as long as a pyramid's cell (64 rows), whole blocks are drawn from
their pyramids; the rest, and everything that was written twice, from the values themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from torchvitals.record.row import Floats, is_missing
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
    return _envelope(_cells(source, found, [number]), points)


def peaks(
    source: Source, found: Sequence[View], columns: Sequence[int], points: int
) -> tuple[Ints, Floats]:
    """Buckets × columns: the value of largest magnitude, NaN when one is among them."""
    if not found:
        return merge.matrix(source, found, columns)
    cells = buckets(source, found, columns, points)
    return cells.first_step, pyramid.peak(cells)


def buckets(
    source: Source,
    found: Sequence[View],
    columns: Sequence[int],
    points: int,
    *,
    most_values: int | None = None,
) -> pyramid.Cells:
    """At most `points` buckets × columns, each named by its first step.

    Fewer, when so many would take more than `most_values` values to be read: then they are as long
    as a pyramid's cell.
    """
    if not found:
        return pyramid.from_values(*merge.matrix(source, found, columns))
    steps = merge.distinct(
        np.concatenate([source.axis(view.piece).steps[view.rows(source)] for view in found])
    )
    length = -(-len(steps) // points)
    twice = merge.conflict(source, found, columns)
    if most_values is not None and len(steps) * len(columns) > most_values and not twice:
        length = max(length, pyramid.CELL_ROWS)
    if length < pyramid.CELL_ROWS or twice:
        steps, values = merge.matrix(source, found, columns)
        cells = pyramid.from_values(steps, values)
        length = -(-len(steps) // points)
        return cells if length <= 1 else pyramid.merge(cells, np.arange(len(steps)) // length)
    edges = steps[::length]
    cells = _cells(source, found, columns)
    cells = pyramid.select(cells, np.argsort(cells.first_step, kind="stable"))
    at = np.searchsorted(edges, cells.first_step, side="right") - 1
    merged = pyramid.merge(cells, at)._replace(first_step=edges[np.unique(at)])
    return pyramid.select(merged, np.flatnonzero(merged.num_values.any(axis=1)))


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


def _cells(source: Source, found: Sequence[View], columns: Sequence[int]) -> pyramid.Cells:
    """The cells of the views, one after the other: from pyramids where they are all there."""
    parts = []
    for (layout, sealed), group in groupby(found, lambda view: (view.piece.layout, _sealed(view))):
        positions, at = merge.chosen_columns(layout, columns)
        views = list(group)
        if sealed:
            many = [source.cells([view.piece for view in views], positions)]
        else:
            many = [_single_cells(source, view, positions) for view in views]
        parts += [pyramid.widen(cells, at, len(columns)) for cells in many]
    return pyramid.join(parts)


def _sealed(view: View) -> bool:
    return view.piece.block is not None and view.piece.ordered and view.whole


def _single_cells(source: Source, view: View, positions: list[int]) -> pyramid.Cells:
    """Every row a cell, sorted by step."""
    rows = view.rows(source)
    steps = source.axis(view.piece).steps[rows]
    cells = pyramid.from_values(steps, source.values(view.piece, positions, keep=False)[rows])
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
        cells.flags[:, 0],
    )


def _num_rows(source: Source, view: View) -> int:
    if view.whole:
        return view.piece.num_rows
    return len(source.axis(view.piece).steps[view.rows(source)])
