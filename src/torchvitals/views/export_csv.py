"""CSV: a header line, then a line a value (long) or a line a step (wide).

Values are the shortest text that reads back as the same float32. NaN, Infinity and -Infinity are
spelled out, which Python's float() and pandas take; in wide files an empty field was not measured.
"""

from __future__ import annotations

import csv
import io
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import Floats, Key
from torchvitals.views.as_json import spelled
from torchvitals.views.records import LongChunk, WideChunk

LINES = 65536
"""Lines joined into one text before they are written."""


class CsvFile:
    """Writes chunks to an open text file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._begun = False

    def long(self, chunk: LongChunk) -> None:
        """The values of one column."""
        if not self._begun:
            self._begun = True
            self._file.write("step,time,kind,site,stat,value\n")
        name = csv_line([chunk.key.kind, chunk.key.site, chunk.key.stat])
        for at in range(0, len(chunk.steps), LINES):
            mine = slice(at, at + LINES)
            rows = zip(
                chunk.steps[mine].tolist(),
                chunk.times[mine].tolist(),
                number_texts(chunk.values[mine]),
                strict=True,
            )
            self._file.write(
                "".join(f"{step},{when!r},{name},{text}\n" for step, when, text in rows)
            )

    def wide(self, chunk: WideChunk) -> None:
        """Some steps, all columns."""
        if not self._begun:
            self._begun = True
            self._file.write(csv_line(["step", "time", *map(str, chunk.keys)]) + "\n")
        texts = np.array(number_texts(chunk.values.ravel()), dtype=object)
        texts = texts.reshape(chunk.values.shape)
        texts[~chunk.measured] = ""
        rows = zip(chunk.steps.tolist(), chunk.times.tolist(), texts.tolist(), strict=True)
        for step, when, line in rows:
            self._file.write(f"{step},{when!r},{','.join(line)}\n")

    def empty(self, keys: list[Key], *, wide: bool) -> None:
        """A run without rows still has its header."""
        if not self._begun:
            names = map(str, keys) if wide else ("kind", "site", "stat", "value")
            self._file.write(csv_line(["step", "time", *names]) + "\n")

    def close(self) -> None:
        """Nothing is held back."""


def number_texts(values: Floats) -> list[str]:
    """The shortest text of each float32 that reads back as the same."""
    texts: list[str] = values.astype(np.str_).tolist()
    bad: NDArray[np.intp] = np.flatnonzero(~np.isfinite(values))
    for at in bad.tolist():
        texts[at] = spelled(float(values[at]))
    return texts


def csv_line(fields: list[str]) -> str:
    """Fields quoted where they need it, without the line's end."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
