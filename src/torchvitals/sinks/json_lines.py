"""`JsonLines`: an object a step, strict JSON; NaN, Infinity and -Infinity are texts."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import ClassVar, TextIO

from torchvitals.record import Event, Row, RunInfo
from torchvitals.sinks.sink import Sink
from torchvitals.sinks.texts import number_text


class JsonLines(Sink):
    """``{"step": 3, "time": …, "loss": 2.1, …}``, and ``{"step": 3, "event": …}`` for events.

    By default ``rows.jsonl`` in the run's folder. A file that is there is added to.
    """

    name: ClassVar[str] = "JSON lines"

    def __init__(self, path: str | Path | None = None, *, series: str | None = None) -> None:
        self.path = Path(path) if path is not None else None
        self.series = series
        self._file: TextIO | None = None

    def open(self, info: RunInfo, folder: Path) -> None:
        """Open the file."""
        path = self.path if self.path is not None else folder / "rows.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: Row) -> None:
        """One step."""
        numbers = zip(row.header, row.values, strict=True)
        values = {str(key): _number(number_text(value)) for key, value in numbers}
        self._line({"step": row.step, "time": row.time, **values})

    def event(self, event: Event) -> None:
        """What happened."""
        self._line(
            {"step": event.step, "time": event.time, "event": event.kind, "text": event.text}
        )

    def flush(self) -> None:
        """To the disk."""
        if self._file is not None:
            self._file.flush()

    def close(self, status: str) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _line(self, entry: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(entry, allow_nan=False) + "\n")


def _number(text: str) -> float | str:
    """The float64 that prints as the float32 did."""
    value = float(text)
    return value if isfinite(value) else text
