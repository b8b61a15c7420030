"""`slowest_rank`: which rank holds the others up.

Ranks that exchange gradients every step wait for each other inside it, so that all of them take as
long as the slowest: then only the wait for data, which comes before, tells them apart. Both are
given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchvitals.store import History

ROWS = 20
"""Comparisons of the ranks that the medians are taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestRank:
    """The rank with the longest steps, and the one that waits longest for data."""

    num_ranks: int
    rank: str
    step_s: float
    slower_frac: float
    """How much longer than the median of all ranks: 0.25 is a quarter longer."""
    data_rank: str | None
    data_s: float | None
    median_data_s: float | None


def slowest_rank(history: History, *, stop: int | None = None) -> SlowestRank | None:
    """None unless there are two ranks or more."""
    steps = _medians(history, "step_s", stop)
    if len(steps) < 2:
        return None
    rank = max(steps, key=lambda name: steps[name])
    usual = float(np.median(list(steps.values())))
    waits = _medians(history, "data_s", stop)
    data_rank = max(waits, key=lambda name: waits[name], default=None)
    return SlowestRank(
        num_ranks=len(steps),
        rank=rank,
        step_s=steps[rank],
        slower_frac=steps[rank] / usual - 1.0 if usual > 0 else 0.0,
        data_rank=data_rank,
        data_s=None if data_rank is None else waits[data_rank],
        median_data_s=None if data_rank is None else float(np.median(list(waits.values()))),
    )


def _medians(history: History, stat: str, stop: int | None) -> dict[str, float]:
    """The recent median of each rank that has one."""
    found = {}
    for key in history.keys("rank", stat=stat):
        _, values = history.series(key, stop=stop)
        good = values[np.isfinite(values)][-ROWS:]
        if len(good):
            found[key.site] = float(np.median(good))
    return found
