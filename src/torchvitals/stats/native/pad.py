"""`Pad`: tables for results, made many at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchvitals.stats.native.tables import address

SHEET = 1 << 17
"""Numbers on a sheet for results, 1 MB: those of 32 steps of a small model."""
TOGETHER = 32
MAX_SIZES = 256


class Cut(NamedTuple):
    """Tables for the results of one call, one after the other."""

    tables: list[NDArray[np.float64]]
    place: int
    """Where the first one is."""


class Pad:
    """Tables for results, made many at a time: cutting one while training waits costs more."""

    def __init__(self) -> None:
        self._ready: dict[tuple[int, ...], list[Cut]] = {}
        self._made: dict[tuple[int, ...], int] = {}

    def take(self, num: int, *widths: int) -> Cut:
        """Tables of `num` lines and these widths."""
        kind = (num, *widths)
        ready = self._ready.get(kind)
        if not ready:
            ready = self._more(kind)
        return ready.pop()

    def _more(self, kind: tuple[int, ...]) -> list[Cut]:
        """Twice as many as the last time: tables of sizes that come once are few."""
        if len(self._made) > MAX_SIZES:
            self._ready.clear()
            self._made.clear()
        num, *widths = kind
        size = num * sum(widths)
        most = max(SHEET // max(size, 1), 1)
        made = self._made[kind] = min(2 * self._made.get(kind, 0) or 1, most, TOGETHER)
        sheet = np.empty((made, size))
        place, ends = address(sheet), np.cumsum([num * width for width in widths])
        ready = self._ready[kind] = [
            Cut(
                [
                    part.reshape(num, width)
                    for part, width in zip(np.split(row, ends[:-1]), widths, strict=True)
                ],
                place + line * row.nbytes,
            )
            for line, row in enumerate(sheet)
        ]
        return ready
