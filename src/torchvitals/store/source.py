"""`Source`: what lies in a run file, piece by piece, for readers.

A piece is a sealed block or the raw rows of one layout and attempt. The source keeps an index of
the pieces, brings it up to date when data was committed, and decodes what is asked for, checksums
verified. Blocks never change, so what was decoded may be kept. Everything here runs inside the
snapshot (read transaction) that `History` opens.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.errors import CorruptRun
from torchvitals.record.key import Key
from torchvitals.record.row import Counts, Floats
from torchvitals.store import codec, pyramid
from torchvitals.store.attempts import Attempt, read_attempts
from torchvitals.store.codec import Bytes, Ints, Times
from torchvitals.store.schema import VALUES
from torchvitals.store.sealer import PART_COLUMNS, PART_SITES, PYRAMID_COLUMNS

CACHE_BYTES: Final = 64 << 20
"""Kept of decoded values, and as much of pyramids."""
_MAX_ASKED: Final = 1 << 16
T = TypeVar("T")
P = TypeVar("P", codec.Lanes, Counts)


class Axis(NamedTuple):
    """The rows of a piece, in the order in which they were appended."""

    steps: Ints
    times: Times
    seqs: Ints


@dataclass(frozen=True, eq=False)
class Layout:
    """A list of columns; `position` finds a column in it."""

    id: int
    form: str
    columns: Ints

    @cached_property
    def position(self) -> dict[int, int]:
        """Column id → place in the row."""
        return {column: at for at, column in enumerate(self.columns.tolist())}


@dataclass(frozen=True, eq=False)
class Piece:
    """A block, or (`block` is None) the raw rows of a layout and attempt."""

    attempt: int
    layout: Layout
    low_step: int
    high_step: int
    block: int | None
    num_rows: int
    ordered: bool


class Source:
    """The index of a run file and its decoder."""

    def __init__(
        self, connection: sqlite3.Connection, path: Path, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._connection = connection
        self._path = path
        self._cache_bytes = cache_bytes
        self._version: int | None = None
        self._columns: dict[Key, int] = {}
        self._names: dict[int, Key] = {}
        self._layouts: dict[int, Layout] = {}
        self._blocks: list[Piece] = []
        self._last_block = 0
        self._axes: dict[int, Axis] = {}
        self._parts: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._parts_bytes = 0
        self._pyramids: OrderedDict[tuple[int, int], Bytes] = OrderedDict()
        self._pyramids_bytes = 0
        self._asked: dict[tuple[int, int], None] = {}
        self._tail_seq = 0
        self._clear_tail()
        self.attempts: list[Attempt] = []

    def version(self) -> int:
        """Changes whenever another connection has committed something."""
        number: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return number

    @property
    def cached_bytes(self) -> int:
        """What is kept of decoded values and pyramids."""
        return self._parts_bytes + self._pyramids_bytes

    def stamp(self) -> str:
        """Names what is stored; the same in every process, unlike `version`."""
        newest = self._connection.execute(
            "SELECT (SELECT max(seq) FROM rows), (SELECT max(id) FROM blocks), "
            "(SELECT max(id) FROM events), (SELECT max(id) FROM columns)"
        ).fetchone()
        attempts = self._connection.execute("SELECT id, started, ended, status FROM attempts")
        text = repr((newest, attempts.fetchall()))
        return hashlib.blake2s(text.encode(), digest_size=8).hexdigest()

    def refresh(self) -> None:
        """Bring the index up to date."""
        version = self.version()
        if version == self._version:
            return
        read = self._connection.execute
        self.attempts = read_attempts(self._connection)
        for number, *names in read(
            "SELECT id, kind, site, stat FROM columns WHERE id > ?", (len(self._names),)
        ):
            key = Key(*names)
            self._columns[key] = number
            self._names[number] = key
        newest = max(self._layouts, default=0)
        for number, form, blob in read("SELECT * FROM layouts WHERE id > ?", (newest,)):
            columns = self._decoded(f"layout {number}", codec.decode_ids, blob)
            self._layouts[number] = Layout(number, form, columns)
        found = read(
            "SELECT id, attempt, layout, low_step, high_step, num_rows, ordered "
            "FROM blocks WHERE id > ? ORDER BY id",
            (self._last_block,),
        ).fetchall()
        for block, attempt, layout, low, high, rows, ordered in found:
            piece = Piece(
                attempt, self._layout(layout), low, high, block, rows, ordered=bool(ordered)
            )
            self._blocks.append(piece)
            self._last_block = block
        if found:
            self._clear_tail()
        rows = read(
            "SELECT seq, attempt, layout, step, time FROM rows WHERE seq > ? ORDER BY seq",
            (self._tail_seq,),
        ).fetchall()
        for row in rows:
            self._tail_rows.setdefault((row[1], row[2]), []).append((row[0], row[3], row[4]))
            self._tail_seq = row[0]
        if rows:
            self._tail_axes.clear()
        self._version = version

    @property
    def columns(self) -> dict[Key, int]:
        """Ids of all columns, in stored order."""
        return self._columns

    def names(self, columns: Iterable[int]) -> Iterator[Key]:
        """The keys of columns."""
        return map(self._names.__getitem__, columns)

    def layouts(self, form: str) -> list[Layout]:
        """All layouts of values or of histograms."""
        return [layout for layout in self._layouts.values() if layout.form == form]

    def pieces(self, layouts: Sequence[Layout]) -> list[Piece]:
        """Blocks and raw rows of these layouts, in the order in which they were written."""
        chosen = {layout.id for layout in layouts}
        found = [piece for piece in self._blocks if piece.layout.id in chosen]
        for (attempt, number), rows in self._tail_rows.items():
            if number in chosen:
                steps = self._tail_axis(attempt, number).steps
                low, high = int(steps.min()), int(steps.max())
                ordered = bool((np.diff(steps) > 0).all())
                layout = self._layout(number)
                found.append(Piece(attempt, layout, low, high, None, len(rows), ordered))
        return sorted(found, key=lambda piece: (piece.attempt, piece.low_step))

    def axis(self, piece: Piece) -> Axis:
        """Steps, times and sequence numbers of a piece's rows."""
        if piece.block is None:
            return self._tail_axis(piece.attempt, piece.layout.id)
        axis = self._axes.get(piece.block)
        if axis is None:
            blob = self._blob("SELECT axis FROM blocks WHERE id = ?", (piece.block,), "its axis")
            axis = self._axes[piece.block] = Axis(
                *self._decoded(
                    f"the axis of block {piece.block}", codec.decode_axis, blob, piece.num_rows
                )
            )
        return axis

    def values(self, piece: Piece, positions: Sequence[int], *, keep: bool = True) -> Floats:
        """Some columns of a piece, shape (rows, len(positions)); `keep` them for the next call."""
        if piece.block is None:
            return self._tail_values(piece)[:, np.asarray(positions, dtype=np.intp)]
        out = np.empty((len(positions), piece.num_rows), dtype=np.float32)
        for part, inside, at in _by_part(tuple(positions), PART_COLUMNS):
            out[at] = codec.take_columns(self._lanes(piece, part, keep=keep), inside)
        return out.T

    def column(self, piece: Piece, position: int) -> Floats:
        """One column of a piece."""
        if piece.block is None:
            raw: Floats = self._tail_values(piece)[:, position]
            return raw
        part, inside = divmod(position, PART_COLUMNS)
        return codec.take_column(self._lanes(piece, part, keep=True), inside)

    def line(self, piece: Piece, row: int) -> Floats:
        """One row of a piece, all columns."""
        if piece.block is None:
            raw: Floats = self._tail_values(piece)[row]
            return raw
        width = len(piece.layout.columns)
        found = self._connection.execute(
            "SELECT part, data FROM parts WHERE block = ? ORDER BY part", (piece.block,)
        )
        parts = []
        for part, blob in found:
            columns = min(PART_COLUMNS, width - part * PART_COLUMNS)
            what = f"part {part} of block {piece.block}"
            parts.append(self._decoded(what, codec.open_values, blob, columns, piece.num_rows))
        if sum(len(lanes.noisy) for lanes in parts) != width:
            raise self._corrupt(f"block {piece.block}", "some of its parts are missing")
        return codec.take_row(parts, row) if parts else np.empty(0, dtype=np.float32)

    def counts(self, piece: Piece, position: int, *, keep: bool = True) -> Counts:
        """The histograms of one site, shape (rows, NUM_BINS)."""
        width = len(piece.layout.columns)
        if piece.block is None:
            return np.stack(
                [
                    self._decoded("a raw histogram row", codec.decode_count_row, payload, width)[
                        position
                    ]
                    for payload in self._tail_payloads(piece)
                ]
            )
        part, inside = divmod(position, PART_SITES)
        sites = min(PART_SITES, width - part * PART_SITES)
        decoded: Counts = self._part(
            piece, part, lambda blob: codec.decode_counts(blob, sites, piece.num_rows), keep=keep
        )
        return np.ascontiguousarray(decoded[:, inside])

    def cells(self, pieces: Sequence[Piece], positions: Sequence[int]) -> pyramid.Cells:
        """The pyramids of some columns of blocks of one layout, one block after the other."""
        parts = _by_part(tuple(positions), PYRAMID_COLUMNS)
        numbers, flags = [], []
        # Blocks have as many cells each, but for the last of an attempt: unpacked together.
        for count, group in groupby(pieces, lambda piece: pyramid.num_cells(piece.num_rows)):
            some = list(group)
            opened = np.empty((len(some), codec.CELL_BYTES, len(positions), count), dtype=np.uint8)
            for line, piece in zip(opened, some, strict=True):
                found = self._pyramid(piece, [part for part, _, _ in parts])
                for (_, inside, at), part in zip(parts, found, strict=True):
                    line[:, at] = part[:, inside]
            floats, small = codec.unpack_cells(opened)
            numbers.append(floats)
            flags.append(small)
        low, high, last = np.concatenate(numbers, axis=2).transpose(0, 2, 1)
        bits, counts = np.concatenate(flags, axis=2).transpose(0, 2, 1)
        ends = [pyramid.cell_steps(self.axis(piece).steps) for piece in pieces]
        first_step, last_step = (np.concatenate(many) for many in zip(*ends, strict=True))
        return pyramid.Cells(first_step, last_step, low, high, last, bits, counts.astype(np.int64))

    def _pyramid(self, piece: Piece, parts: Sequence[int]) -> list[Bytes]:
        """Parts of a block's pyramid, opened. They are kept: the next statistic needs them too."""
        if piece.block is None or piece.layout.form != VALUES:
            raise ValueError("only sealed blocks of values have pyramids")
        block, width = piece.block, len(piece.layout.columns)
        lacking = [part for part in parts if (block, part) not in self._pyramids]
        blobs: dict[int, bytes] = {}
        if lacking:
            blobs = dict(
                self._connection.execute(
                    "SELECT part, data FROM pyramids WHERE block = ? AND part BETWEEN ? AND ?",
                    (block, lacking[0], lacking[-1]),
                )
            )
        found = []
        for part in parts:
            opened = self._pyramids.get((block, part))
            if opened is None:
                what = f"pyramid {part} of block {block}"
                if part not in blobs:
                    raise self._corrupt(what, "it is missing")
                columns = min(PYRAMID_COLUMNS, width - part * PYRAMID_COLUMNS)
                opened = self._decoded(
                    what, codec.open_cells, blobs[part], columns, pyramid.num_cells(piece.num_rows)
                )
                self._pyramids[block, part] = opened
                self._pyramids_bytes += opened.nbytes
                while self._pyramids_bytes > self._cache_bytes:
                    self._pyramids_bytes -= self._pyramids.popitem(last=False)[1].nbytes
            else:
                self._pyramids.move_to_end((block, part))
            found.append(opened)
        return found

    def _lanes(self, piece: Piece, part: int, *, keep: bool) -> codec.Lanes:
        columns = min(PART_COLUMNS, len(piece.layout.columns) - part * PART_COLUMNS)
        return self._part(
            piece, part, lambda blob: codec.open_values(blob, columns, piece.num_rows), keep=keep
        )

    def _part(self, piece: Piece, part: int, decode: Callable[[bytes], P], *, keep: bool) -> P:
        assert piece.block is not None
        place = (piece.block, part)
        known: P | None = self._parts.get(place)
        if known is not None:
            self._parts.move_to_end(place)
            return known
        what = f"part {part} of block {piece.block}"
        blob = self._blob("SELECT data FROM parts WHERE block = ? AND part = ?", place, what)
        decoded = self._decoded(what, decode, blob)
        if keep and place not in self._asked:
            # Kept at the second request only: fresh memory costs as much as decompressing.
            self._asked[place] = None
            if len(self._asked) > _MAX_ASKED:
                self._asked.pop(next(iter(self._asked)))
        elif keep:
            self._parts[place] = decoded
            self._parts_bytes += decoded.nbytes
            while self._parts_bytes > self._cache_bytes:
                self._parts_bytes -= self._parts.popitem(last=False)[1].nbytes
        return decoded

    def _clear_tail(self) -> None:
        self._tail_seq = 0
        self._tail_rows: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
        self._tail_axes: dict[tuple[int, int], Axis] = {}
        self._tail_matrix: dict[tuple[int, int], Floats] = {}

    def _tail_axis(self, attempt: int, layout: int) -> Axis:
        group = (attempt, layout)
        axis = self._tail_axes.get(group)
        if axis is None:
            seqs, steps, times = zip(*self._tail_rows[group], strict=True)
            axis = self._tail_axes[group] = Axis(
                np.array(steps, dtype=np.int64),
                np.array(times, dtype=np.float64),
                np.array(seqs, dtype=np.int64),
            )
        return axis

    def _tail_values(self, piece: Piece) -> Floats:
        """All raw rows of a layout; only those that are new since the last call are read."""
        group = (piece.attempt, piece.layout.id)
        width = len(piece.layout.columns)
        known = self._tail_matrix.get(group, np.empty((0, width), dtype=np.float32))
        if len(known) < piece.num_rows:
            payloads = self._tail_payloads(piece, skip=len(known))
            fresh = np.frombuffer(b"".join(payloads), "<f4")
            if fresh.size != width * len(payloads):
                raise self._corrupt(f"a raw row of layout {piece.layout.id}", "its size is wrong")
            known = np.concatenate([known, fresh.reshape(-1, width).astype(np.float32, copy=False)])
            self._tail_matrix[group] = known
        return known

    def _tail_payloads(self, piece: Piece, skip: int = 0) -> list[memoryview]:
        group = (piece.attempt, piece.layout.id)
        first = self._tail_rows[group][skip][0]
        rows = self._connection.execute(
            "SELECT seq, step, time, data FROM rows WHERE seq >= ? AND attempt = ? AND layout = ? "
            "ORDER BY seq",
            (first, *group),
        )
        return [
            self._decoded(f"raw row {seq} (step {step})", codec.row_payload, step, time, data)
            for seq, step, time, data in rows
        ]

    def _layout(self, number: int) -> Layout:
        layout = self._layouts.get(number)
        if layout is None:
            raise self._corrupt(f"layout {number}", "it is missing")
        return layout

    def _blob(self, query: str, arguments: tuple[int, ...], what: str) -> bytes:
        row = self._connection.execute(query, arguments).fetchone()
        if row is None:
            raise self._corrupt(what, "it is missing")
        blob: bytes = row[0]
        return blob

    def _decoded(self, what: str, decode: Callable[..., T], *arguments: Any) -> T:
        try:
            return decode(*arguments)
        except codec.Damaged as damage:
            raise self._corrupt(what, str(damage)) from None

    def _corrupt(self, what: str, why: str) -> CorruptRun:
        return CorruptRun(
            f"{self._path} is damaged: {what}: {why}. Run torchvitals.store.verify on it to see "
            "everything that is lost; the rest stays readable with start= and stop=."
        )


@lru_cache(maxsize=64)
def _by_part(
    positions: tuple[int, ...], size: int
) -> list[tuple[int, NDArray[np.intp], NDArray[np.intp]]]:
    """(part, places inside the part, places in the result) for every part that is touched."""
    wanted = np.asarray(positions, dtype=np.intp)
    parts = wanted // size
    order = np.argsort(parts, kind="stable")
    numbers, starts = np.unique(parts[order], return_index=True)
    groups = np.split(order, starts[1:])
    return [(int(n), wanted[at] - n * size, at) for n, at in zip(numbers, groups, strict=True)]
