"""Sums that several ranks hold of the same lines: how they travel and how they are merged.

A piece is a list of a probe's lines and what was measured of them. Sums add up, minima and maxima
are compared; ratios are derived afterwards, so that the result is that of one process that had seen
it all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchvitals.stats import sums as s
from torchvitals.stats.backend import Measured

Piece = tuple[list[int], Measured]

FIELDS = (("sums", len(s.FIELDS)), ("delta_sums", len(s.FIELDS)), ("dots", 3), ("outside", 1))
WIDTH = sum(width for _, width in FIELDS)

TWIN = 1e-3
"""How far apart the sums of one tensor on two ranks may be: their weights drift by rounding."""


@dataclass(slots=True)
class Block:
    """What one rank measured of some lines, as one table: NaN where a field was not measured."""

    lines: NDArray[np.int64]
    table: NDArray[np.float64]

    @classmethod
    def of(cls, pieces: Sequence[Piece], keep: NDArray[np.bool_] | None = None) -> Block:
        """The pieces as one block, each line once; only lines of `keep`."""
        tables = [_table(measured) for _, measured in pieces]
        lines = np.array([line for own, _ in pieces for line in own], dtype=np.int64)
        table = np.concatenate(tables) if tables else np.empty((0, WIDTH))
        if keep is not None and len(lines):
            wanted = keep[lines]
            lines, table = lines[wanted], table[wanted]
        order = np.argsort(lines, kind="stable")
        starts = np.flatnonzero(np.diff(lines[order], prepend=-1))
        if len(starts) < len(lines):
            ordered = table[order]
            table = np.add.reduceat(ordered, starts, axis=0)
            for low in (s.MIN, len(s.FIELDS) + s.MIN):
                high = low + s.MAX - s.MIN
                table[:, low] = np.minimum.reduceat(ordered[:, low], starts)
                table[:, high] = np.maximum.reduceat(ordered[:, high], starts)
            return cls(lines[order][starts], table)
        return cls(lines, table)

    def without(self, lines: NDArray[np.bool_]) -> Block:
        """The block without the rows marked."""
        return Block(self.lines[~lines], self.table[~lines])

    def renamed(self, line_of: NDArray[np.int64]) -> Block:
        """The same under another numbering of lines; those without a number (−1) are left out."""
        lines = line_of[self.lines]
        known = lines >= 0
        return Block(lines[known], self.table[known])


def absorb(pieces: list[Piece], block: Block) -> None:
    """Merge a block of another rank into the pieces; lines they lack are appended."""
    left = np.ones(len(block.lines), dtype=bool)
    for own, measured in pieces:
        row_of = np.full(max([*own, *block.lines.tolist(), 0]) + 1, -1, dtype=np.int64)
        row_of[own[::-1]] = np.arange(len(own))[::-1]  # a line that is there twice: its first row
        rows = np.where(left, row_of[block.lines], -1)
        there = np.flatnonzero(rows >= 0)
        if len(there):
            left[there] = False
            rows = rows[there]
            _write(measured, rows, merge(_table(measured)[rows], block.table[there]))
    if left.any():
        pieces.append((block.lines[left].tolist(), _measured(block.table[left])))


def twins(block: Block, others: Sequence[Block]) -> NDArray[np.bool_]:
    """Lines that one of the other blocks holds too: the same tensor on two ranks, up to rounding.

    Two parts of a tensor agree in count, sum, sum of squares, minimum and maximum only by chance.
    """
    found = np.zeros(len(block.lines), dtype=bool)
    for other in others:
        row_of = np.full(int(max(block.lines.max(initial=0), other.lines.max(initial=0))) + 1, -1)
        row_of[other.lines] = np.arange(len(other.lines))
        rows = row_of[block.lines]
        there = rows >= 0
        ours, theirs = block.table[there], other.table[rows[there]]
        scale = np.sqrt(np.abs(ours[:, [s.COUNT]] * ours[:, [s.SUMSQ]])) + 1e-30
        columns = slice(0, s.MAX + 1)
        same = np.isclose(ours[:, columns], theirs[:, columns], rtol=TWIN, atol=0.0)
        same[:, s.SUM] |= np.abs(ours[:, s.SUM] - theirs[:, s.SUM]) <= TWIN * scale[:, 0]
        found[there] |= same.all(axis=1)
    return found


def scaled(pieces: Sequence[Piece], sizes: NDArray[np.float64], only: NDArray[np.bool_]) -> None:
    """Blow samples up to the tensors they stand for, so that those of several ranks add up."""
    for lines, measured in pieces:
        measured.host()
        count = measured.sums[:, s.COUNT]
        factor = np.where(only[lines], sizes[lines] / np.maximum(count, 1.0), 1.0)
        for name in ("sums", "delta_sums"):
            values = getattr(measured, name)
            if values is not None:
                values[:, : s.MIN] *= factor[:, None]
                values[:, s.MAX + 1 :] *= factor[:, None]
        if measured.dots is not None:
            measured.dots *= factor[:, None]


def merge(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of two blocks' tables as one. A field that one side lacks stays unknown."""
    out = a + b
    for start in (0, len(s.FIELDS)):
        low, high = start + s.MIN, start + s.MAX
        out[..., low] = np.minimum(a[..., low], b[..., low])
        out[..., high] = np.maximum(a[..., high], b[..., high])
    return out


def _columns() -> dict[str, slice]:
    found, start = {}, 0
    for name, width in FIELDS:
        found[name] = slice(start, start + width)
        start += width
    return found


COLUMNS = _columns()


def _table(measured: Measured) -> NDArray[np.float64]:
    measured.host()
    table = np.full((len(measured.sums), WIDTH), np.nan)
    for name, columns in COLUMNS.items():
        values: Any = getattr(measured, name)
        if values is not None:
            table[:, columns] = values.reshape(len(table), -1)
    return table


def _measured(table: NDArray[np.float64]) -> Measured:
    out = Measured(sums=table[:, COLUMNS["sums"]].copy())
    for name in ("delta_sums", "dots", "outside"):
        values = table[:, COLUMNS[name]]
        if not np.isnan(values).all():
            setattr(out, name, values[:, 0].copy() if name == "outside" else values.copy())
    return out


def _write(measured: Measured, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    for name, columns in COLUMNS.items():
        field: Any = getattr(measured, name)
        if field is not None:
            field[rows] = values[:, columns][:, 0] if name == "outside" else values[:, columns]
