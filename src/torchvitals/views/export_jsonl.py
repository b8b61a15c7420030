"""JSON lines: an object a value (long) or a step (wide), strict JSON.

NaN, Infinity and -Infinity are texts, which JSON has no numbers for; in wide files a column that
was not measured at a step is not in its object.
"""

from __future__ import annotations

import json
from typing import TextIO

import numpy as np

from torchvitals.record import Floats, Key
from torchvitals.views.export_csv import LINES, number_texts
from torchvitals.views.records import LongChunk, WideChunk


class JsonlFile:
    """Writes chunks to an open text file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def long(self, chunk: LongChunk) -> None:
        """The values of one column."""
        key = chunk.key
        name = json.dumps({"kind": key.kind, "site": key.site, "stat": key.stat})[1:-1]
        for at in range(0, len(chunk.steps), LINES):
            mine = slice(at, at + LINES)
            rows = zip(
                chunk.steps[mine].tolist(),
                chunk.times[mine].tolist(),
                _json_numbers(chunk.values[mine]),
                strict=True,
            )
            self._file.write(
                "".join(
                    f'{{"step": {step}, "time": {_time(when)}, {name}, "value": {text}}}\n'
                    for step, when, text in rows
                )
            )

    def wide(self, chunk: WideChunk) -> None:
        """Some steps, all columns."""
        names = [json.dumps(str(key)) for key in chunk.keys]
        for line, step in enumerate(chunk.steps.tolist()):
            there = np.flatnonzero(chunk.measured[line])
            texts = _json_numbers(chunk.values[line, there])
            fields = [f'"step": {step}', f'"time": {_time(float(chunk.times[line]))}']
            fields += [f"{names[at]}: {text}" for at, text in zip(there, texts, strict=True)]
            self._file.write("{" + ", ".join(fields) + "}\n")

    def empty(self, keys: list[Key], *, wide: bool) -> None:
        """A run without rows is an empty file."""

    def close(self) -> None:
        """Nothing is held back."""


def _json_numbers(values: Floats) -> list[str]:
    texts = number_texts(values)
    for at in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[at] = f'"{texts[at]}"'
    return texts


def _time(when: float) -> str:
    return repr(when) if np.isfinite(when) else "null"
