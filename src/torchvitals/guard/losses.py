"""`Losses`: has the training come off its way? Judged from the losses the guard is told.

`level` is the median of the last 8 losses. Divergence is a level that stays up:

    lost half     more than half of the way from the first losses to the best level is lost again
    shifted       6σ above the 128 losses before, and a tenth of that way lost
    after a raise within 64 losses of a learning rate far beyond any before: 3σ above those before

σ is 1.4826 · MAD. Losses may be negative. A loss that falls to 1e-8 and trembles there has lost
nothing of its way, which starts at the first losses.

A loss that was ever zero or negative (policy gradients, ratios of densities) says nothing by its
level and is not judged, unless the user asks for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

RECENT = 8
ENOUGH = 5
"""Of the last few, before their median is a level."""
WINDOW = 128
WARMUP = 32
RAISE_STEPS = 64
TO_STD = 1.4826


class Place(NamedTuple):
    """Where losses lie."""

    median: float
    spread: float
    """σ around the median, a slope included."""
    noise: float
    """σ from one loss to the next: a slope does not count."""


NOWHERE = Place(math.nan, math.nan, math.nan)


class Losses:
    """The losses of one optimizer's steps."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, bool]] = deque()
        """The last few, and whether their steps were good."""
        self._values: deque[float] = deque(maxlen=WINDOW)
        """The good ones before them."""
        self._start = math.nan
        self._best = math.inf
        self._count = 0
        self._before: Place | None = None
        """What it was before the learning rate was raised."""
        self._left = 0
        """Losses for which that is held against it."""
        self._told = False
        self.positive = True
        """No loss so far was zero or negative."""
        self._place = NOWHERE
        """Median, σ and noise of the good ones, as of a few losses ago: they move slowly."""

    @property
    def level(self) -> float:
        """The median of the last few, flagged ones too; NaN of none."""
        return _median([loss for loss, _ in self._recent])

    def add(self, loss: float, *, good: bool = True) -> None:
        """Take a finite loss in; of a flagged step it counts for the level only."""
        self._count += 1
        self.positive = self.positive and loss > 0
        self._left = max(self._left - 1, 0)
        self._recent.append((loss, good))
        if len(self._recent) <= RECENT:
            return
        left, was_good = self._recent.popleft()
        if was_good:
            self._values.append(left)
            if self._count % RECENT == 0 or math.isnan(self._place.spread):
                self._place = _location(self._values)
        level = self.level
        if math.isnan(self._start):
            self._start = level
        self._best = min(self._best, level)

    def spiked(self, loss: float) -> float | None:
        """The threshold, if this loss, not yet taken in, stands far above those before."""
        if len(self._values) < WARMUP:
            return None
        middle, spread, _ = self._place
        limit = middle + max(6.0 * spread, abs(middle), 0.1 * self._way)
        return limit if loss > limit else None

    def stats(self) -> dict[str, float]:
        """What the thresholds are made of."""
        middle, spread, _ = self._place
        return {
            "count": self._count, "median": middle, "mad_std": spread,
            "first": self._start, "best": self._best,
        }  # fmt: skip

    @property
    def _way(self) -> float:
        """How far the level has come down."""
        return 0.0 if math.isnan(self._start) else self._start - self._best

    def diverged(self) -> tuple[float, float, str] | None:
        """(level, threshold, why) if it has; told once until the level is down again."""
        found = self._diverged()
        if found is not None and self._told:
            return None
        self._told = found is not None
        return found

    def _diverged(self) -> tuple[float, float, str] | None:
        if len(self._recent) < ENOUGH:
            return None
        level = self.level
        if self._left and self._before is not None:
            middle, spread, _ = self._before
            limit = middle + max(3.0 * spread, 0.02 * abs(middle))
            if level > limit:
                return level, limit, "after a raised learning rate"
        if self._count < WARMUP + RECENT or math.isnan(self._start):
            return None
        middle, spread, noise = self._place
        if self._way > 0.3 * abs(self._start) and not self._way <= 6.0 * noise:
            limit = self._best + 0.5 * self._way
            if level > limit:
                return level, limit, "half of the way lost"
        if math.isfinite(spread):
            limit = middle + max(6.0 * spread, 0.1 * self._way)
            if level > limit:
                return level, limit, "shifted"
        return None

    def is_bad(self) -> bool | None:
        """Whether the last losses stand clearly above those before; None: too few to say."""
        middle, spread, _ = self._before or self._place
        if not math.isfinite(spread) or not self._recent:
            return None
        return self.level > middle + max(3.0 * spread, 0.02 * abs(middle))

    def raised(self) -> None:
        """The learning rate was raised far beyond any before: what follows is on probation."""
        values = [*self._values, *(loss for loss, good in self._recent if good)][-WARMUP:]
        if len(values) >= WARMUP // 2:
            self._before, self._left = _location(values), RAISE_STEPS
        self.changed()

    def changed(self) -> None:
        """The learning rate was changed: other losses may follow. The way so far still counts."""
        self._recent.clear()
        self._values.clear()
        self._place = NOWHERE

    def rolled_back(self) -> None:
        """The weights are those of a while ago: what came since does not count."""
        self._recent.clear()
        self._before, self._left, self._told = None, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "recent": [list(one) for one in self._recent], "values": list(self._values),
            "start": self._start, "best": self._best, "count": self._count,
            "left": self._left, "told": self._told, "positive": self.positive,
            "place": list(self._place),
            "before": None if self._before is None else list(self._before),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._recent = deque((loss, bool(good)) for loss, good in state["recent"])
        self._values = deque(state["values"], maxlen=WINDOW)
        self._start, self._best, self._count = state["start"], state["best"], state["count"]
        self._left, self._told, self.positive = state["left"], state["told"], state["positive"]
        self._place = Place(*state["place"])
        self._before = None if state["before"] is None else Place(*state["before"])


def _median(values: Sequence[float]) -> float:
    if not values:
        return math.nan
    # Of a handful: sorting beats numpy.
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else 0.5 * (ordered[half - 1] + ordered[half])


def _location(values: Sequence[float]) -> Place:
    """Median, σ and noise; NaN of too few."""
    if len(values) < WARMUP // 2:
        return NOWHERE
    array = np.array(values)
    middle = float(np.median(array))
    spread = TO_STD * float(np.median(np.abs(array - middle)))
    return Place(middle, spread, TO_STD * float(np.median(np.abs(np.diff(array)))) / math.sqrt(2))
