"""`Rates`: notices learning rates that jump. Smooth schedules (warm-up, cosine, linear) do not.

A jump is a change by more than ×2 in one step that the step before did not announce: a linear
warm-up from 0 doubles too, but by the same amount as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

JUMP = 2.0
UNHEARD = 5.0
"""Times the highest rate so far: no restart of a schedule goes there."""
NONE, CHANGED, RAISED = range(3)


class Rates:
    """The learning rates of one optimizer's groups."""

    def __init__(self) -> None:
        self._last: list[float] = []
        self._slope: list[float] = []
        self._highest: list[float] = []

    def look(self, groups: Sequence[Mapping[str, Any]]) -> int:
        """NONE, CHANGED (a jump), or RAISED: far beyond any rate of this run."""
        now = [_rate(group["lr"]) for group in groups]
        if len(now) != len(self._last):
            new = bool(self._last)
            self._last, self._slope = now, [0.0] * len(now)
            self._highest = list(now)
            return CHANGED if new else NONE
        if now == self._last:
            if any(self._slope):
                self._slope = [0.0] * len(now)
            return NONE
        found = NONE
        for i, (rate, last) in enumerate(zip(now, self._last, strict=True)):
            slope = rate - last
            announced = slope * self._slope[i] > 0 and abs(slope) <= 3 * abs(self._slope[i])
            ratio = rate / last if last > 0 else (float("inf") if rate > 0 else 1.0)
            if not announced and not 1 / JUMP <= ratio <= JUMP:
                raised = self._highest[i] > 0 and rate > UNHEARD * self._highest[i]
                found = max(found, RAISED if raised else CHANGED)
            self._slope[i] = slope
            self._highest[i] = max(self._highest[i], rate)
        self._last = now
        return found

    def forget(self) -> None:
        """After a rollback: what was tried meanwhile does not count."""
        self._last, self._slope = [], []

    def state_dict(self) -> dict[str, Any]:
        """Plain lists."""
        return {
            "last": list(self._last), "slope": list(self._slope), "highest": list(self._highest)
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._last, self._slope = list(state["last"]), list(state["slope"])
        self._highest = list(state["highest"])


def _rate(rate: Any) -> float:
    """As a number; one that lives on a device is not waited for, and not looked at."""
    return 0.0 if isinstance(rate, Tensor) and not rate.is_cpu else float(rate)
