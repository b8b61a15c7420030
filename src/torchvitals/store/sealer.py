"""Sealing: a few hundred raw rows of one layout and attempt become one block of columns.

The work is cut in pieces that take a few milliseconds each, so the thread that appends rows is
never held up: `Seal` takes the rows, `advance` compresses some columns, `publish` stores the
block and deletes the raw rows, all in the caller's transaction. Until then the raw rows are what
readers see; a crash in between costs nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from torchvitals.record.bins import NUM_BINS
from torchvitals.record.row import Counts
from torchvitals.store import pyramid
from torchvitals.store.codec import (
    Ints,
    Times,
    decode_count_row,
    encode_axis,
    encode_cells,
    encode_counts,
    encode_values,
    row_payload,
)
from torchvitals.store.schema import HISTOGRAMS

VALUE_ROWS: Final = 256
HISTOGRAM_ROWS: Final = 64
PART_COLUMNS: Final = 32
"""Columns in one blob: few enough to read one series, many enough to read one row."""
PART_SITES: Final = 16
PYRAMID_COLUMNS: Final = 256
_PIECE_BYTES: Final = 1 << 19
"""Raw bytes compressed by one `advance`."""
_MAX_BLOCK_BYTES: Final = 1 << 25
_BLOB_OVERHEAD: Final = 24
"""About what a stored blob costs besides its bytes."""

RawRow: TypeAlias = tuple[int, int, float, bytes | memoryview]
"""Sequence number, step, time and payload."""


def rows_due(form: str, width: int, seal_rows: int) -> int:
    """How many raw rows make a block: `seal_rows`, fewer of very wide rows, to spare memory."""
    histogram = form == HISTOGRAMS
    most = min(seal_rows, HISTOGRAM_ROWS) if histogram else seal_rows
    row_bytes = max(1, width) * 4 * (NUM_BINS if histogram else 1)
    return max(1, min(most, max(8, _MAX_BLOCK_BYTES // row_bytes)))


def stored_rows(
    connection: sqlite3.Connection, attempt: int, layout: int, limit: int
) -> list[RawRow]:
    """The oldest raw rows in the file; raises `Damaged`."""
    found = connection.execute(
        "SELECT seq, step, time, data FROM rows WHERE attempt = ? AND layout = ? "
        "ORDER BY seq LIMIT ?",
        (attempt, layout, limit),
    )
    return [(seq, step, time, row_payload(step, time, data)) for seq, step, time, data in found]


class Seal:
    """A block in the making."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        attempt: int,
        layout: int,
        shape: tuple[str, int],
        rows: Sequence[RawRow],
    ) -> None:
        self.attempt, self.layout = attempt, layout
        self._connection = connection
        self._histogram = shape[0] == HISTOGRAMS
        self._width = shape[1]
        self.num_rows = len(rows)
        seqs, steps, times, payloads = zip(*rows, strict=True)
        self.last_seq: int = seqs[-1]
        self._raw_bytes = sum(map(len, payloads)) + _BLOB_OVERHEAD * len(rows)
        self._seqs = np.array(seqs, dtype=np.int64)
        self._steps = np.array(steps, dtype=np.int64)
        self._times = np.array(times, dtype=np.float64)
        if self._histogram:
            self._packed = payloads
            self._counts = np.empty((len(rows), self._width, NUM_BINS), dtype=np.uint32)
            self._unpacked = 0
        else:
            self._values = np.frombuffer(b"".join(payloads), "<f4").reshape(-1, self._width)
        self._done = 0
        self._parts: list[bytes] = []
        self._pyramids: list[bytes] = []

    @property
    def ready(self) -> bool:
        """Everything is compressed; `publish` may be called."""
        return self._done >= self._width

    @property
    def saves_space(self) -> bool:
        """Whether the block is smaller than its raw rows."""
        blobs = [*self._parts, *self._pyramids]
        size = sum(map(len, blobs)) + _BLOB_OVERHEAD * (1 + len(blobs)) + 8 * self.num_rows
        return size < self._raw_bytes

    def advance(self) -> None:
        """One more piece of the work, a few milliseconds."""
        if self._histogram:
            self._advance_histograms()
        else:
            self._advance_values()

    def publish(self) -> None:
        """Store the block and delete its raw rows."""
        axis = (self._steps, self._times, self._seqs)
        store_block(
            self._connection,
            self.attempt,
            self.layout,
            axis,
            parts=self._parts,
            pyramids=self._pyramids,
        )
        self._connection.execute(
            "DELETE FROM rows WHERE seq <= ? AND attempt = ? AND layout = ?",
            (self.last_seq, self.attempt, self.layout),
        )

    def _advance_values(self) -> None:
        columns = max(1, _PIECE_BYTES // (4 * self.num_rows) // PYRAMID_COLUMNS) * PYRAMID_COLUMNS
        piece = self._values[:, self._done : self._done + columns]
        upright = np.ascontiguousarray(piece.T)
        self._parts += [
            encode_values(upright[at : at + PART_COLUMNS])
            for at in range(0, len(upright), PART_COLUMNS)
        ]
        cells = pyramid.summarise(self._steps, piece)
        floats = np.stack([cells.low.T, cells.high.T, cells.last.T])
        small = np.stack([cells.flags.T, cells.num_values.T.astype(np.uint8)])
        self._pyramids += [
            encode_cells(floats[:, at : at + PYRAMID_COLUMNS], small[:, at : at + PYRAMID_COLUMNS])
            for at in range(0, len(upright), PYRAMID_COLUMNS)
        ]
        self._done += columns

    def _advance_histograms(self) -> None:
        # First unpack the rows, some at a time, then compress the sites.
        site_bytes = 4 * NUM_BINS
        if self._unpacked < self.num_rows:
            some = max(1, _PIECE_BYTES * 4 // (self._width * site_bytes))
            for at in range(self._unpacked, min(self._unpacked + some, self.num_rows)):
                self._counts[at] = decode_count_row(self._packed[at], self._width)
            self._unpacked += some
            return
        sites = max(1, _PIECE_BYTES // (site_bytes * self.num_rows) // PART_SITES) * PART_SITES
        self._parts += histogram_parts(self._counts[:, self._done : self._done + sites])
        self._done += sites


def store_block(
    connection: sqlite3.Connection,
    attempt: int,
    layout: int,
    axis: tuple[Ints, Times, Ints],
    *,
    parts: Sequence[bytes],
    pyramids: Sequence[bytes] = (),
) -> None:
    """Store a block whose rows have these (steps, times, sequence numbers)."""
    steps, times, seqs = axis
    block = connection.execute(
        "INSERT INTO blocks (attempt, layout, num_rows, low_step, high_step, last_seq, "
        "ordered, axis) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            attempt,
            layout,
            len(steps),
            int(steps.min()),
            int(steps.max()),
            int(seqs[-1]),
            bool((np.diff(steps) > 0).all()),
            encode_axis(steps, times, seqs),
        ),
    ).lastrowid
    for table, blobs in (("parts", parts), ("pyramids", pyramids)):
        connection.executemany(
            f"INSERT INTO {table} VALUES (?, ?, ?)",
            [(block, part, blob) for part, blob in enumerate(blobs)],
        )


def histogram_parts(counts: Counts) -> list[bytes]:
    """The blobs of a block of histograms, shape (rows, sites, NUM_BINS)."""
    return [
        encode_counts(counts[:, at : at + PART_SITES])
        for at in range(0, counts.shape[1], PART_SITES)
    ]
