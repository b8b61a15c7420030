"""``histograms``: how the values of one site are distributed, over time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from torchvitals.dashboard.answers.axes import AXES, on_axis
from torchvitals.dashboard.question import Body, Question
from torchvitals.record import Key, UnknownKey
from torchvitals.record.bins import NUM_BINS, ZERO_BIN, bounds, percentiles
from torchvitals.store.codec import Ints

ARGUMENTS: Final = ("kind", "site", "points", "start", "stop", "x", "format")
PERCENTILES: Final = (0, 1, 5, 25, 50, 75, 95, 99, 100)


def histograms(question: Question) -> Body:
    """Counts in the bins that are used, and percentiles; histograms of one bucket are added up."""
    asked, history = question.asked, question.history
    kind, site = asked.text("kind"), asked.text("site")
    start, stop = asked.integer("start"), asked.integer("stop")
    steps, counts = history.histograms(site, kind, start=start, stop=stop)
    length = max(-(-len(steps) // asked.points(200)), 1)
    edges = np.arange(0, len(steps), length)
    first = steps[edges]
    summed = (
        np.add.reduceat(counts.astype(np.float64), edges, axis=0)
        if len(edges)
        else np.zeros((0, NUM_BINS))
    )
    lowest = _extreme(question, Key(kind, site, "min"), first, np.fmin)
    highest = _extreme(question, Key(kind, site, "max"), first, np.fmax)
    fan = np.zeros((0, len(PERCENTILES)))
    if len(first):
        fan = percentiles(summed, PERCENTILES, lowest, highest)
        for end, known in ((0, lowest), (-1, highest)):
            if known is not None:  # the ends themselves, not a place in the outermost bin
                fan[:, end] = np.where(np.isfinite(known), known, fan[:, end])
    used = np.flatnonzero(summed.any(axis=0))
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (ZERO_BIN, ZERO_BIN + 1)
    left, right = bounds()
    x = asked.choice("x", AXES)
    arrays: dict[str, NDArray[Any]] = {"steps": first.astype(np.float64)}
    if x != "step":
        arrays["x"] = on_axis(history, x, first)
    arrays |= {
        "low": left[low:high],
        "high": right[low:high],
        "counts": summed[:, low:high].astype(np.float32),
        "percentiles": fan.astype(np.float32),
    }
    header = {"kind": kind, "site": site, "x": x, "percentiles": list(PERCENTILES)}
    return question.frame(header, arrays)


def _extreme(
    question: Question, key: Key, first: Ints, take: np.ufunc
) -> NDArray[np.float64] | None:
    """The least minimum, or the largest maximum, of each bucket; None when it is not stored."""
    asked = question.asked
    try:
        steps, values = question.history.series(
            key, start=asked.integer("start"), stop=asked.integer("stop")
        )
    except UnknownKey:
        return None
    out = np.full(len(first), np.nan)
    known = np.isfinite(values)
    # Steps before the first histogram count to it: it was added up over them.
    at = np.maximum(np.searchsorted(first, steps[known], side="right") - 1, 0)
    if len(first):
        take.at(out, at, values[known].astype(np.float64))
    return out
