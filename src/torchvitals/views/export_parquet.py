"""Parquet through pyarrow: values as float32, NaN and ±Inf as they are, not measured as null."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from torchvitals.record import Key, MissingExtra
from torchvitals.views.records import LongChunk, WideChunk

GROUP_ROWS = 1 << 20
"""Rows gathered before a row group is written."""


def pyarrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet; MissingExtra without them."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra(
            "exporting to Parquet needs pyarrow, which is not installed here. Install it with: "
            "pip install torchvitals[parquet]"
        ) from error
    return arrow, parquet


class ParquetFile:
    """Writes chunks to a Parquet file at a path."""

    def __init__(self, path: Path) -> None:
        self._arrow, self._parquet = pyarrow()
        self._path = path
        self._writer: Any = None
        self._waiting: list[LongChunk] = []
        self._rows = 0

    def long(self, chunk: LongChunk) -> None:
        """The values of one column."""
        if not len(chunk.steps):
            return
        self._waiting.append(chunk)
        self._rows += len(chunk.steps)
        if self._rows >= GROUP_ROWS:
            self._flush()

    def wide(self, chunk: WideChunk) -> None:
        """Some steps, all columns."""
        columns = [self._arrow.array(chunk.steps), self._arrow.array(chunk.times)]
        columns += [
            self._arrow.array(
                np.ascontiguousarray(chunk.values[:, at]), mask=~chunk.measured[:, at]
            )
            for at in range(len(chunk.keys))
        ]
        self._write(columns, self._wide_schema(chunk.keys))

    def empty(self, keys: list[Key], *, wide: bool) -> None:
        """A run without rows still has its columns."""
        if self._writer is None and not self._waiting:
            schema = self._wide_schema(keys) if wide else self._long_schema()
            self._writer = self._parquet.ParquetWriter(self._path, schema, compression="zstd")

    def close(self) -> None:
        """Write what waits, and the file's footer."""
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        chunks, self._waiting, self._rows = self._waiting, [], 0
        if not chunks:
            return
        lengths = [len(chunk.steps) for chunk in chunks]
        columns = [
            self._arrow.array(np.concatenate([chunk.steps for chunk in chunks])),
            self._arrow.array(np.concatenate([chunk.times for chunk in chunks])),
            self._names([chunk.key.kind for chunk in chunks], lengths),
            self._names([chunk.key.site for chunk in chunks], lengths),
            self._names([chunk.key.stat for chunk in chunks], lengths),
            self._arrow.array(np.concatenate([chunk.values for chunk in chunks])),
        ]
        self._write(columns, self._long_schema())

    def _names(self, names: list[str], lengths: list[int]) -> Any:
        """Each name so many times, without that many texts in memory."""
        known = list(dict.fromkeys(names))
        places = np.repeat([known.index(name) for name in names], lengths).astype(np.int32)
        return self._arrow.DictionaryArray.from_arrays(places, self._arrow.array(known))

    def _write(self, columns: list[Any], schema: Any) -> None:
        if self._writer is None:
            self._writer = self._parquet.ParquetWriter(self._path, schema, compression="zstd")
        self._writer.write_table(self._arrow.Table.from_arrays(columns, schema=schema))

    def _long_schema(self) -> Any:
        a = self._arrow
        name = a.dictionary(a.int32(), a.string())
        return a.schema(
            [
                ("step", a.int64()), ("time", a.float64()), ("kind", name), ("site", name),
                ("stat", name), ("value", a.float32()),
            ]
        )  # fmt: skip

    def _wide_schema(self, keys: list[Key]) -> Any:
        a = self._arrow
        columns = [(str(key), a.float32()) for key in keys]
        return a.schema([("step", a.int64()), ("time", a.float64()), *columns])
