"""`Csv`: a line a value: step, time, kind, site, stat, value, as `vitals export` writes them.

A line a step would need to know all columns before the first one; columns may join later.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, ClassVar, TextIO

from torchvitals.record import Row, RunInfo
from torchvitals.sinks.sink import Sink
from torchvitals.sinks.texts import number_text

HEADER = ("step", "time", "kind", "site", "stat", "value")


class Csv(Sink):
    """By default ``rows.csv`` in the run's folder. A file that is there is added to."""

    name: ClassVar[str] = "CSV"

    def __init__(self, path: str | Path | None = None, *, series: str | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.series = series
        self._file: TextIO | None = None
        self._lines: Any = None

    def open(self, info: RunInfo, folder: Path) -> None:
        """Open the file."""
        path = self.path if self.path is not None else folder / "rows.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", newline="")
        self._lines = csv.writer(self._file, lineterminator="\n")
        if self._file.tell() == 0:
            self._lines.writerow(HEADER)

    def write(self, row: Row) -> None:
        """One step."""
        for (kind, site, stat), value in zip(row.header, row.values, strict=True):
            self._lines.writerow((row.step, row.time, kind, site, stat, number_text(value)))

    def flush(self) -> None:
        """To the disk."""
        if self._file is not None:
            self._file.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
