"""`Custom`: the user's own `(stats, value) -> bool`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torchvitals.guard.rules.mean_std import Welford
from torchvitals.guard.rules.rule import NOT_YET, Judged, Rule, Stats, at_least


class Custom(Rule):
    """Flags what the callable says; it is given mean and std of the good values (not of logs)."""

    name: ClassVar[str] = "custom"

    def __init__(self, says: Callable[[Stats, float], bool], *, warmup: int = 0) -> None:
        self.says = says
        self.warmup = at_least("warmup", warmup, 0)
        self.reset()

    def judge(self, value: float) -> Judged:
        """Ask."""
        if self._seen.count < self.warmup:
            return NOT_YET
        stats = Stats(self._seen.count, self._seen.mean, self._seen.std, self._last)
        # "clip" has no threshold to go by: the mean of what was good serves.
        target = self._seen.mean if self._seen.count else value
        return Judged(bool(self.says(stats, value)), math.nan, target)

    def learn(self, value: float) -> None:
        """Take a good value in."""
        self._seen.add(value)
        self._last = value

    def reset(self) -> None:
        """Forget."""
        self._seen = Welford()
        self._last = math.nan

    def stats(self) -> dict[str, float]:
        """What the callable was given."""
        return {"count": self._seen.count, "mean": self._seen.mean, "std": self._seen.std}

    def fresh(self) -> Custom:
        """The same callable."""
        return Custom(self.says, warmup=self.warmup)

    def state_dict(self) -> dict[str, Any]:
        """Four numbers."""
        return {"seen": self._seen.state(), "last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._seen.restore(state["seen"])
        self._last = state["last"]
