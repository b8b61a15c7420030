"""`verify`: whether everything in a run file is as it was written.

SQLite's own check, then every blob: checksum, decoding, sizes, and whether it fits the tables
around it. Reads the whole file, changes nothing.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from torchvitals.record.errors import CorruptRun
from torchvitals.store import codec, pyramid
from torchvitals.store.connect import connect_reader, run_file, translated
from torchvitals.store.schema import HISTOGRAMS
from torchvitals.store.sealer import PART_COLUMNS, PART_SITES, PYRAMID_COLUMNS

MAX_PROBLEMS: Final = 100


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found."""

    path: Path
    problems: list[str] = field(default_factory=list)
    """One sentence each; at most `MAX_PROBLEMS`."""
    counts: dict[str, int] = field(default_factory=dict)
    """Entries of each table."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        if self.ok:
            return (
                f"{self.path}: ok ({', '.join(f'{n} {what}' for what, n in self.counts.items())})"
            )
        return "\n".join([f"{self.path}: {len(self.problems)} problem(s)", *self.problems])


def verify(path: str | os.PathLike[str]) -> Report:
    """Check a run; raises RunNotFound or NewerRun, damage is in the report."""
    file = run_file(path)
    report = Report(file)
    try:
        connection = connect_reader(file)
    except CorruptRun as error:
        report.problems.append(str(error))
        return report
    try:
        with translated(file, "read"):
            connection.execute("BEGIN")
            for problem in _problems(connection, report.counts):
                report.problems.append(problem)
                if len(report.problems) >= MAX_PROBLEMS:
                    break
    except CorruptRun as error:
        report.problems.append(str(error))
    finally:
        connection.close()
    return report


def _problems(connection: sqlite3.Connection, counts: dict[str, int]) -> Iterator[str]:
    for (line,) in connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})"):
        if line != "ok":
            yield f"SQLite: {line}."
    for table in (
        "attempts",
        "columns",
        "layouts",
        "rows",
        "blocks",
        "parts",
        "pyramids",
        "events",
    ):
        counts[table] = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    check = _Check(connection)
    yield from check.layouts()
    yield from check.blocks()
    yield from check.rows()
    yield from check.strays()
    yield from check.texts()


class _Check:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._read = connection.execute
        self._widths: dict[int, tuple[str, int]] = {}
        self._sealed: set[int] = set()
        self._attempts = {row[0] for row in self._read("SELECT id FROM attempts")}

    def layouts(self) -> Iterator[str]:
        known = {row[0] for row in self._read("SELECT id FROM columns")}
        for number, form, blob in self._read("SELECT * FROM layouts"):
            ids = yield from _decoded(f"Layout {number}", codec.decode_ids, blob)
            if ids is None:
                continue
            self._widths[number] = (form, len(ids))
            if len(set(ids.tolist())) < len(ids) or not known.issuperset(ids.tolist()):
                yield f"Layout {number} names columns twice or columns that are not there."

    def rows(self) -> Iterator[str]:
        for seq, attempt, layout, step, time, data in self._read("SELECT * FROM rows"):
            name = f"Raw row {seq} (step {step})"
            yield from self._owners(name, attempt, layout)
            payload = yield from _decoded(name, codec.row_payload, step, time, data)
            if payload is None or layout not in self._widths:
                continue
            form, width = self._widths[layout]
            if form == HISTOGRAMS:
                yield from _decoded(name, codec.decode_count_row, payload, width)
            elif len(payload) != 4 * width:
                yield f"{name} holds {len(payload)} bytes where {4 * width} belong."
            if seq in self._sealed:
                yield f"{name} is also in a block."

    def blocks(self) -> Iterator[str]:
        query = (
            "SELECT id, attempt, layout, num_rows, low_step, high_step, last_seq, ordered, axis "
            "FROM blocks"
        )
        for block, attempt, layout, rows, low, high, last_seq, ordered, blob in self._read(query):
            name = f"Block {block}"
            yield from self._owners(name, attempt, layout)
            axis = yield from _decoded(f"The axis of block {block}", codec.decode_axis, blob, rows)
            if axis is None or layout not in self._widths:
                continue
            steps, times, seqs = axis
            self._sealed.update(seqs.tolist())
            if (int(steps.min()), int(steps.max()), int(seqs[-1])) != (low, high, last_seq):
                yield f"{name} says steps {low} to {high}, its axis says otherwise."
            if bool((np.diff(steps) > 0).all()) != bool(ordered) or (np.diff(seqs) <= 0).any():
                yield f"{name} has its rows out of order."
            if not np.isfinite(times).all():
                yield f"{name} has times that are no numbers."
            form, width = self._widths[layout]
            if form == HISTOGRAMS:
                yield from self._parts(
                    block, width, rows, size=PART_SITES, decode=codec.decode_counts
                )
            else:
                yield from self._values(block, width, rows, steps)

    def _values(self, block: int, width: int, rows: int, steps: codec.Ints) -> Iterator[str]:
        values = np.zeros((rows, width), dtype=np.float32)
        whole = yield from self._parts(
            block, width, rows, size=PART_COLUMNS, decode=codec.decode_values, into=values
        )
        expected = pyramid.summarise(steps, values) if whole else None
        cells = pyramid.num_cells(rows)
        for part, at in enumerate(range(0, width, PYRAMID_COLUMNS)):
            name = f"Pyramid {part} of block {block}"
            found = self._read(
                "SELECT data FROM pyramids WHERE block = ? AND part = ?", (block, part)
            ).fetchone()
            if found is None:
                yield f"{name} is missing."
                continue
            columns = min(PYRAMID_COLUMNS, width - at)
            got = yield from _decoded(name, codec.decode_cells, found[0], columns, cells)
            if got is None or expected is None:
                continue
            mine = slice(at, at + columns)
            stored: list[Any] = [*got[0], *got[1]]
            wanted: list[Any] = list(expected[2:])
            same = all(
                np.array_equal(theirs.T, ours[:, mine], equal_nan=True)
                for theirs, ours in zip(stored, wanted, strict=True)
            )
            if not same:
                yield f"{name} does not fit its values."

    def _parts(
        self,
        block: int,
        width: int,
        rows: int,
        *,
        size: int,
        decode: Callable[[bytes, int, int], Any],
        into: Any = None,
    ) -> Any:
        whole = True
        for part, at in enumerate(range(0, width, size)):
            name = f"Part {part} of block {block}"
            found = self._read(
                "SELECT data FROM parts WHERE block = ? AND part = ?", (block, part)
            ).fetchone()
            columns = min(size, width - at)
            if found is None:
                yield f"{name} is missing."
                whole = False
                continue
            got = yield from _decoded(name, decode, found[0], columns, rows)
            if got is None:
                whole = False
            elif into is not None:
                into[:, at : at + columns] = got.T
        return whole

    def strays(self) -> Iterator[str]:
        for table in ("parts", "pyramids"):
            query = f"SELECT DISTINCT block FROM {table} WHERE block NOT IN (SELECT id FROM blocks)"
            for (block,) in self._read(query):
                yield f"Table {table} has entries of block {block}, which is not there."

    def texts(self) -> Iterator[str]:
        for number, text in self._read("SELECT id, data FROM events"):
            yield from _decoded(f"Event {number}", _json, text)
        for number, text in self._read("SELECT id, info FROM attempts"):
            yield from _decoded(f"The information of attempt {number}", _json, text)

    def _owners(self, name: str, attempt: int, layout: int) -> Iterator[str]:
        if attempt not in self._attempts:
            yield f"{name} belongs to attempt {attempt}, which is not there."
        if layout not in self._widths:
            yield f"{name} has layout {layout}, which is not there."


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise codec.Damaged(f"it is no JSON ({error})") from None


def _decoded(name: str, decode: Callable[..., Any], *arguments: Any) -> Any:
    """Yields a sentence when the blob is damaged; returns what was decoded, or None."""
    try:
        return decode(*arguments)
    except codec.Damaged as damage:
        yield f"{name} is damaged: {damage}."
        return None
