"""`Lately`: columns as they were over the last rows: what a run does now, not on average.

The last fifth of the rows with clocks, at least `FEWEST` and at most `MOST` of them, of the newest
attempt only: a run that goes on on another machine has another pace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import Key
from torchvitals.store import History

FEWEST, MOST = 10, 50


@dataclass(frozen=True, slots=True)
class Lately:
    """Reads the end of columns; None for whatever was not measured."""

    history: History
    keys: frozenset[Key]
    start: int | None
    """The first step that counts as recent; None while there are no clocks."""
    stop: int | None

    @classmethod
    def of(cls, history: History, *, stop: int | None = None) -> Lately:
        """The end of a run, or what was its end before step `stop`."""
        steps = history.steps("clock")
        steps = steps[: None if stop is None else int(np.searchsorted(steps, stop))]
        steps = steps[int(np.searchsorted(steps, attempt_start(history, stop=stop))) :]
        recent = steps[-min(MOST, max(FEWEST, len(steps) // 5)) :]
        start = int(recent[0]) if len(recent) else None
        return cls(history, frozenset(history.keys()), start, stop)

    def last(self, key: Key) -> float | None:
        """The newest finite value, however old."""
        if key not in self.keys:
            return None
        values = self.history.series(key, stop=self.stop).values
        good = values[np.isfinite(values)]
        return float(good[-1]) if len(good) else None

    def total(self, key: Key) -> float | None:
        """The sum of the recent values."""
        if key not in self.keys or self.start is None:
            return None
        _, values = self.series(key)
        return float(values.sum()) if len(values) else None

    def rate(self, key: Key, seconds: Key) -> float | None:
        """The recent mean of a rate, each value weighted by the seconds it stands for."""
        if not {key, seconds} <= self.keys or self.start is None:
            return None
        (steps, rates), (others, spent) = self.series(key), self.series(seconds)
        _, ours, theirs = np.intersect1d(steps, others, assume_unique=True, return_indices=True)
        weights = spent[theirs]
        return float(np.average(rates[ours], weights=weights)) if weights.sum() > 0 else None

    def series(self, key: Key) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Recent steps and values, the finite ones."""
        steps, values = self.history.series(key, start=self.start, stop=self.stop)
        good = np.isfinite(values)
        return steps[good].astype(np.int64), values[good].astype(np.float64)

    def sites(self, kind: str, stats: Iterable[str]) -> list[str]:
        """Sites of a kind that have one of these stats, in stored order."""
        wanted = set(stats)
        found = (key.site for key in self.history.keys(kind) if key.stat in wanted)
        return list(dict.fromkeys(found))


def attempt_start(history: History, *, stop: int | None = None) -> int:
    """The first step of the newest attempt that had begun before `stop`; 0 if there is none."""
    begun = [
        attempt.first_step
        for attempt in history.attempts
        if attempt.first_step is not None and (stop is None or attempt.first_step < stop)
    ]
    return begun[-1] if begun else 0
