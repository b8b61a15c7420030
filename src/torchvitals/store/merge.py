"""Merging: pieces of several layouts and attempts become one series or one matrix.

Of several values for the same step and key, the last one written wins; a MISSING never replaces a
value. Of several attempts, the newest one that has reached a step is seen there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.key import Key
from torchvitals.record.row import MISSING, Floats, is_missing
from torchvitals.store.attempts import Attempt, visible_until
from torchvitals.store.codec import Ints, Times
from torchvitals.store.source import Layout, Piece, Source


class View(NamedTuple):
    """A piece and the steps of it that are asked for: low ≤ step < high (None: no limit)."""

    piece: Piece
    low: int | None
    high: int | None

    @property
    def whole(self) -> bool:
        """All of the piece's rows are asked for."""
        below = self.low is not None and self.piece.low_step < self.low
        above = self.high is not None and self.piece.high_step >= self.high
        return not below and not above

    def rows(self, source: Source) -> slice | NDArray[np.intp]:
        """Which rows those are."""
        if self.whole:
            return slice(None)
        steps = source.axis(self.piece).steps
        chosen = np.ones(len(steps), dtype=bool)
        if self.low is not None:
            chosen &= steps >= self.low
        if self.high is not None:
            chosen &= steps < self.high
        return np.flatnonzero(chosen)


def views(
    source: Source,
    layouts: Sequence[Layout],
    attempt: int | None,
    start: int | None,
    stop: int | None,
) -> list[View]:
    """The pieces that hold visible rows with start ≤ step < stop, in the order of writing."""
    until = cuts(source.attempts)
    found = []
    for piece in source.pieces(layouts):
        if attempt is not None and piece.attempt != attempt:
            continue
        cut = until[piece.attempt] if attempt is None else None
        high = stop if cut is None else cut if stop is None else min(cut, stop)
        if start is not None and piece.high_step < start:
            continue
        if high is not None and (piece.low_step >= high or (start is not None and start >= high)):
            continue
        found.append(View(piece, start, high))
    return found


def cuts(attempts: Iterable[Attempt]) -> dict[int, int | None]:
    """For each attempt, the step from which on a newer one is seen."""
    return visible_until(
        {
            attempt.id: (attempt.first_step, attempt.last_step)
            for attempt in attempts
            if attempt.first_step is not None and attempt.last_step is not None
        }
    )


def last_wins(steps: Ints, seqs: Ints, *arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Sort by step and keep, for each step, what was written last."""
    if len(steps) < 2 or bool((np.diff(steps) > 0).all()):
        return (steps, *arrays)
    order = np.lexsort((seqs, steps))
    ordered = steps[order]
    order = order[np.append(np.diff(ordered) > 0, True)]
    return (steps[order], *(array[order] for array in arrays))


def column(source: Source, found: Sequence[View], number: int) -> tuple[Ints, Floats]:
    """Steps and values of one column, MISSING dropped."""
    if not found:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
    pieces = []
    for view in found:
        axis = source.axis(view.piece)
        got = source.column(view.piece, view.piece.layout.position[number])
        if view.whole:
            pieces.append((axis.steps, axis.seqs, got))
        else:
            rows = view.rows(source)
            pieces.append((axis.steps[rows], axis.seqs[rows], got[rows]))
    steps, seqs, values = (np.concatenate(field) for field in zip(*pieces, strict=True))
    there = ~is_missing(values)
    if not there.all():
        steps, seqs, values = steps[there], seqs[there], values[there]
    merged = last_wins(steps, seqs, values)
    return merged[0], merged[1]


def times(source: Source, found: Sequence[View]) -> tuple[Ints, Times]:
    """All steps and when the last row of each was stored."""
    if not found:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64)
    lines = [(source.axis(view.piece), view.rows(source)) for view in found]
    steps, seqs, when = (
        np.concatenate([field[rows] for field, rows in column])
        for column in (
            [(axis.steps, rows) for axis, rows in lines],
            [(axis.seqs, rows) for axis, rows in lines],
            [(axis.times, rows) for axis, rows in lines],
        )
    )
    merged = last_wins(steps, seqs, when)
    return merged[0], merged[1]


def row(source: Source, found: Sequence[View], step: int) -> dict[Key, float]:
    """Everything measured at one step."""
    lines: list[tuple[int, Ints, Floats]] = []
    for view in found:
        columns, axis = view.piece.layout.columns, source.axis(view.piece)
        rows = np.flatnonzero(axis.steps == step)
        if len(rows):
            lines += [
                (int(axis.seqs[at]), columns, source.line(view.piece, int(at))) for at in rows
            ]
    result: dict[int, float] = {}
    for _, columns, values in sorted(lines, key=lambda line: line[0]):
        there = ~is_missing(values)
        result.update(zip(columns[there].tolist(), values[there].tolist(), strict=True))
    return dict(zip(source.names(result), result.values(), strict=True))


def chosen_columns(layout: Layout, columns: Sequence[int]) -> tuple[list[int], NDArray[np.intp]]:
    """Positions in the layout, and places in `columns`, of those columns the layout holds."""
    pairs = [(layout.position[c], at) for at, c in enumerate(columns) if c in layout.position]
    return [pair[0] for pair in pairs], np.array([pair[1] for pair in pairs], dtype=np.intp)


def conflict(source: Source, found: Sequence[View], columns: Sequence[int]) -> bool:
    """Whether two rows may hold a value for the same step and one of these columns."""
    if _successive(found):
        return False
    groups: list[tuple[set[int], list[Ints]]] = []
    wanted = set(columns)
    for view in found:
        steps = source.axis(view.piece).steps[view.rows(source)]
        mine = wanted & view.piece.layout.position.keys()
        touching = [group for group in groups if group[0] & mine]
        merged = (set().union(mine, *(g[0] for g in touching)), [steps])
        for group in touching:
            merged[1].extend(group[1])
            groups.remove(group)
        groups.append(merged)
    for _, many in groups:
        together = np.concatenate(many)
        if len(distinct(together)) < len(together):
            return True
    return False


def distinct(steps: Ints) -> Ints:
    """Sorted, each once."""
    if not bool((np.diff(steps) > 0).all()):
        steps = np.sort(steps)
        steps = steps[np.diff(steps, prepend=steps[:1] - 1) > 0]
    return steps


def _successive(found: Sequence[View]) -> bool:
    """Whether each piece begins after the one before has ended: the usual case."""
    end = None
    for view in found:
        piece = view.piece
        if not piece.ordered or (end is not None and piece.low_step <= end):
            return False
        end = piece.high_step if view.high is None else min(piece.high_step, view.high - 1)
    return True


def matrix(source: Source, found: Sequence[View], columns: Sequence[int]) -> tuple[Ints, Floats]:
    """All steps × columns; MISSING where nothing was measured."""
    if not found:
        return np.empty(0, dtype=np.int64), np.empty((0, len(columns)), dtype=np.float32)
    keep = len(columns) <= 32
    pieces = []
    for view in found:
        axis, rows = source.axis(view.piece), view.rows(source)
        positions, at = chosen_columns(view.piece.layout, columns)
        values = source.values(view.piece, positions, keep=keep)[rows]
        pieces.append((axis.steps[rows], axis.seqs[rows], at, values))
    steps = distinct(np.concatenate([piece[0] for piece in pieces]))
    out = np.full((len(steps), len(columns)), MISSING, dtype=np.float32)
    if conflict(source, found, columns):
        _overlay(steps, pieces, out)
    else:
        for mine, _, at, values in pieces:
            lines = np.searchsorted(steps, mine)
            blank = is_missing(values)
            if blank.any():
                before = out[np.ix_(lines, at)]
                values = np.where(blank, before, values)  # noqa: PLW2901
            out[np.ix_(lines, at)] = values
    # A step at which only other columns of the layout were measured is no step of this matrix.
    measured = ~is_missing(out).all(axis=1)
    return (steps, out) if measured.all() else (steps[measured], out[measured])


def _overlay(
    steps: Ints, pieces: list[tuple[Ints, Ints, NDArray[np.intp], Floats]], out: Floats
) -> None:
    """Row by row in the order of writing: slow, for the rare values that were written twice."""
    owners = np.repeat(np.arange(len(pieces)), [len(piece[0]) for piece in pieces])
    inside = np.concatenate([np.arange(len(piece[0])) for piece in pieces])
    seqs = np.concatenate([piece[1] for piece in pieces])
    for i in np.argsort(seqs, kind="stable"):
        mine, _, at, values = pieces[owners[i]]
        line = int(np.searchsorted(steps, mine[inside[i]]))
        there = ~is_missing(values[inside[i]])
        out[line, at[there]] = values[inside[i]][there]
