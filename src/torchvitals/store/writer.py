"""`RunWriter`: rows in. The one process that writes a run holds one of these.

Guarantees: what was committed survives a kill at any moment; there is never more than one
transaction open; after a failed write the writer is usable again, without what was not committed.
All calls take an internal lock, so the thread that made the writer need not be the one that uses
it. docs/store.md has the whole story.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Final, TypeAlias

import numpy as np

from torchvitals.record.bins import NUM_BINS
from torchvitals.record.errors import ConfigError, RunExists, RunLocked, StoreError
from torchvitals.record.event import Event
from torchvitals.record.row import MISSING, Floats, HistogramRow, Row
from torchvitals.record.run_info import RunInfo
from torchvitals.store.attempts import HEARTBEAT_STALE_S, last_step, step_spans
from torchvitals.store.codec import MISSING_COUNT, encode_count_row, row_blob
from torchvitals.store.connect import connect_writer, run_file, translated
from torchvitals.store.layouts import Layouts
from torchvitals.store.lock import RunLock
from torchvitals.store.sealer import VALUE_ROWS
from torchvitals.store.sealing import Sealing

HEARTBEAT_S: Final = 1.0
_INSERT: Final = "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)"

PlacedRow: TypeAlias = tuple[int, float, int, bytes]
"""Step, time, layout and values."""


class RunWriter:
    """Writes one attempt of one run; made by `RunWriter.create`."""

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        lock: RunLock,
        info: RunInfo,
        *,
        seal_rows: int,
        clock: Callable[[], float],
    ) -> None:
        self.path = path
        """The run file."""
        self._connection = connection
        self._lock = lock
        self._mutex = threading.RLock()
        self._pid = os.getpid()
        self._clock = clock
        self._closed = False
        self._layouts = Layouts(connection)
        self._sealing = Sealing(connection, self._layouts.shape, seal_rows)
        self.last_step = last_step(connection)
        """Last step stored by earlier attempts and by this one; None when there is none."""
        now = clock()
        connection.execute("BEGIN IMMEDIATE")
        # An attempt that still says "running" was killed: the lock is ours.
        connection.execute(
            "UPDATE attempts SET status = 'died', ended = heartbeat WHERE status = 'running'"
        )
        cursor = connection.execute(
            "INSERT INTO attempts (started, status, pid, host, heartbeat, info) "
            "VALUES (?, 'running', ?, ?, ?, ?)",
            (now, self._pid, socket.gethostname(), now, json.dumps(info.to_json(), default=str)),
        )
        connection.execute("COMMIT")
        self.attempt = int(cursor.lastrowid or 0)
        """Number of this attempt; the first is 1."""
        self._heartbeat = now
        self._stored = False
        self._seq = _last_seq(connection)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        info: RunInfo,
        *,
        resume: bool = False,
        seal_rows: int = VALUE_ROWS,
        clock: Callable[[], float] = time.time,
    ) -> RunWriter:
        """Start a run in the folder `path`, or with `resume` another attempt of the run there.

        `resume=True` on a folder without a run starts a new one. Raises RunExists, RunLocked,
        NewerRun, CorruptRun, or StoreError when the folder can't be written.
        """
        if seal_rows < 1:
            raise ConfigError(f"seal_rows must be at least 1, got {seal_rows}; leave it out.")
        file = run_file(path)
        with translated(file, "create"):
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = RunLock.acquire(file.parent)
            try:
                connection = connect_writer(file)
                try:
                    _check_free(connection, file, lock, resume=resume, now=clock())
                    return cls(file, connection, lock, info, seal_rows=seal_rows, clock=clock)
                except BaseException:
                    connection.close()
                    raise
            except BaseException:
                lock.release()
                raise

    def append(self, *rows: Row) -> None:
        """Store rows. Later rows of the same step add to it; the last value of a key wins."""
        found = [(row, np.asarray(row.values, dtype="<f4")) for row in rows]
        for row, values in found:
            if values.shape != (len(row.header),):
                raise ConfigError(
                    f"A row's values must have one number a column: the header has "
                    f"{len(row.header)} columns, the values have shape {values.shape}."
                )
        with self._writing():
            self._insert([self._placed(row, values) for row, values in found if row.header])

    def append_histograms(self, row: HistogramRow) -> None:
        """Store the histograms of a step."""
        counts = np.asarray(row.counts, dtype=np.uint32)
        if counts.shape != (len(row.sites), NUM_BINS):
            raise ConfigError(
                f"Histogram counts must have shape ({len(row.sites)}, {NUM_BINS}) for "
                f"{len(row.sites)} sites, got {counts.shape}."
            )
        if not row.sites:
            return
        with self._writing():
            place = self._layouts.of_histograms(row.sites)
            if place.positions is not None:
                wide = np.zeros((place.width, NUM_BINS), dtype=np.uint32)
                wide[:, 0] = MISSING_COUNT
                wide[place.positions] = counts
                counts = wide
            self._insert([(int(row.step), float(row.time), place.layout, encode_count_row(counts))])

    def event(self, event: Event) -> None:
        """Store something that happened."""
        with self._writing():
            self._connection.execute(
                "INSERT INTO events (attempt, step, time, kind, text, data) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (
                    self.attempt,
                    event.step,
                    event.time,
                    event.kind,
                    event.text,
                    json.dumps(dict(event.data), default=str),
                ),
            )

    def commit(self) -> None:
        """Make everything so far safe against a kill, and say that the run is alive."""
        now = self._clock()
        with self._mutex:
            self._check_open()
            if not self._connection.in_transaction and now - self._heartbeat < HEARTBEAT_S:
                return
            with self._writing():
                self._connection.execute(
                    "UPDATE attempts SET heartbeat = ? WHERE id = ?", (now, self.attempt)
                )
                self._connection.execute("COMMIT")
                self._heartbeat = now

    def seal(self) -> bool:
        """Do one bounded piece of sealing; True when more is due. `append` calls this itself."""
        with self._writing():
            return self._sealing.advance()

    def close(self, status: str = "finished") -> None:
        """Seal what is left, end the attempt and fold the journal into one single file.

        Whatever happens, the lock is released; an error while sealing is raised after that.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            if os.getpid() != self._pid:
                return
            try:
                with self._rolling_back():
                    self._begin()
                    self._end_attempt(status)
                with self._rolling_back():
                    self._begin()
                    for _ in self._sealing.finish():
                        self._connection.execute("COMMIT")
                        self._begin()
                    self._connection.execute("COMMIT")
                self._fold()
            finally:
                self._connection.close()
                self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close("finished" if kind is None else "failed")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"attempt {self.attempt}"
        return f"<RunWriter {str(self.path)!r}, {state}, last step {self.last_step}>"

    def _placed(self, row: Row, values: Floats) -> PlacedRow:
        place = self._layouts.of_row(row.header)
        if place.positions is not None:
            wide = np.full(place.width, MISSING, dtype="<f4")
            wide[place.positions] = values
            values = wide
        return int(row.step), float(row.time), place.layout, values.tobytes()

    def _insert(self, rows: list[PlacedRow]) -> None:
        if not rows:
            return
        placed = list(enumerate(rows, start=self._seq + 1))
        self._connection.executemany(
            _INSERT,
            [
                (seq, self.attempt, layout, step, when, row_blob(step, when, payload))
                for seq, (step, when, layout, payload) in placed
            ],
        )
        self._seq += len(rows)
        newest = max(step for step, *_ in rows)
        # The newest attempt counts, even when it starts again below where an older one ended.
        started = self._stored and self.last_step is not None
        self.last_step = max(newest, self.last_step or newest) if started else newest
        self._stored = True
        for layout, group in groupby(placed, key=lambda one: one[1][2]):
            raw = [(seq, step, when, payload) for seq, (step, when, _, payload) in group]
            self._sealing.appended(self.attempt, layout, raw)

    def _end_attempt(self, status: str) -> None:
        now = self._clock()
        self._connection.execute(
            "UPDATE attempts SET status = ?, ended = ?, heartbeat = ? WHERE id = ?",
            (status, now, now, self.attempt),
        )
        self._connection.execute("COMMIT")

    def _fold(self) -> None:
        """Give free pages back and leave WAL mode, so that one plain file remains.

        A reader that has the file open right now keeps it in WAL mode; then the journal is
        emptied instead, and goes away when the run is next written.
        """
        with translated(self.path, "close"):
            # One step of this statement frees one page; a script runs all of them.
            self._connection.executescript("PRAGMA incremental_vacuum")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            self._connection.execute("PRAGMA busy_timeout = 0")
            try:
                self._connection.execute("PRAGMA journal_mode = DELETE").fetchall()
            except sqlite3.OperationalError:
                return

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._mutex:
            self._check_open()
            with self._rolling_back():
                self._begin()
                yield

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")

    @contextmanager
    def _rolling_back(self) -> Iterator[None]:
        try:
            with translated(self.path, "write"):
                yield
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        """Forget what was not committed, also what is remembered about it."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._layouts.reload()
            self._sealing.recount()
            self._seq = _last_seq(self._connection)
            self.last_step = last_step(self._connection)
            self._stored = self.attempt in step_spans(self._connection)
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} can't be written or read any more: {error}.") from error

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError(f"The writer of {self.path} is closed; nothing can be stored now.")
        if os.getpid() != self._pid:
            raise StoreError(
                f"The writer of {self.path} belongs to process {self._pid}, not to its fork "
                f"{os.getpid()}; log from the training process only."
            )


def _last_seq(connection: sqlite3.Connection) -> int:
    top: int = connection.execute(
        "SELECT max(coalesce((SELECT max(seq) FROM rows), 0), "
        "coalesce((SELECT max(last_seq) FROM blocks), 0))"
    ).fetchone()[0]
    return top


def _check_free(
    connection: sqlite3.Connection, file: Path, lock: RunLock, *, resume: bool, now: float
) -> None:
    last = connection.execute(
        "SELECT status, heartbeat, pid, host FROM attempts ORDER BY id DESC LIMIT 1"
    ).fetchone()
    if last is None:
        return
    if not resume:
        raise RunExists(
            f"There is a run in {file.parent} already; pass resume=True to continue it, or choose "
            "another name."
        )
    status, heartbeat, pid, host = last
    if not lock.held and status == "running" and now - heartbeat < HEARTBEAT_STALE_S:
        raise RunLocked(
            f"{file.parent} is being written by process {pid} on {host}, which was alive "
            f"{now - heartbeat:.0f} s ago; stop that process, or choose another run name."
        )
