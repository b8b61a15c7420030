"""`MeanStd`: above mean + k · std of the good values so far. The default.

Welford's recurrence in O(1) memory; from `memory` values on old ones fade exponentially, so that
the baseline follows a norm that drifts as training goes:

    w = 1 / min(n, memory)      d = x − mean      mean += w·d      var = (1 − w)·(var + w·d²)

With `log` (the default) x is the logarithm: norms are skewed and change by factors. `least`: a
value below that many times the (geometric) mean is never flagged, however small the spread. A
training that converges quietly has nearly none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torchvitals.guard.rules.rule import NOT_YET, Judged, Rule, at_least, positive
from torchvitals.record import ConfigError


class Welford:
    """Running mean and spread; exact until `memory` values are in, then fading."""

    def __init__(self, memory: float = math.inf) -> None:
        self.memory = memory
        self.count, self.mean, self.var = 0, 0.0, 0.0

    def add(self, x: float) -> None:
        """Take a value in."""
        self.count += 1
        weight = 1.0 / min(self.count, self.memory)
        delta = x - self.mean
        self.mean += weight * delta
        self.var = (1.0 - weight) * (self.var + weight * delta * delta)

    @property
    def std(self) -> float:
        """With n − 1; NaN of fewer than two."""
        num = min(self.count, self.memory)
        return math.sqrt(self.var * num / (num - 1.0)) if num > 1 else math.nan

    def state(self) -> list[float]:
        """Its three numbers."""
        return [self.count, self.mean, self.var]

    def restore(self, state: list[float]) -> None:
        """What `state` gave."""
        count, self.mean, self.var = state
        self.count = int(count)


class MeanStd(Rule):
    """Flags what exceeds mean + k · std."""

    name: ClassVar[str] = "mean_std"
    settings: ClassVar[tuple[str, ...]] = ("k", "warmup", "log")

    def __init__(
        self,
        k: float = 6.0,
        *,
        log: bool = True,
        warmup: int = 20,
        memory: int | None = 200,
        least: float = 3.0,
    ) -> None:
        self.k = positive("k", k)
        self.log = log
        self.warmup = at_least("warmup", warmup, 2)
        self.memory = None if memory is None else at_least("memory", memory, 2)
        self.least = positive("least", least)
        if self.least < 1:
            raise ConfigError(f"least must be at least 1, got {least}")
        self._seen = self._empty()

    def _empty(self) -> Welford:
        return Welford(math.inf if self.memory is None else float(self.memory))

    def judge(self, value: float) -> Judged:
        """Against the threshold as it is now."""
        if self._seen.count < self.warmup:
            return NOT_YET
        limit = self.threshold()
        return Judged(value > limit, limit, limit)

    def threshold(self) -> float:
        """Of a rule that has warmed up."""
        seen = self._seen
        spread = self.k * seen.std
        if not self.log:
            return max(seen.mean + spread, self.least * seen.mean)
        exponent = seen.mean + max(spread, math.log(self.least))
        return math.exp(exponent) if exponent < 700 else math.inf

    def learn(self, value: float) -> None:
        """Take a good value in; a norm of zero has no logarithm and tells nothing."""
        if not self.log:
            self._seen.add(value)
        elif value > 0:
            self._seen.add(math.log(value))

    def reset(self) -> None:
        """Forget."""
        self._seen = self._empty()

    def stats(self) -> dict[str, float]:
        """Mean and std: of the logarithms, if it uses them."""
        prefix = "log_" if self.log else ""
        return {
            "count": self._seen.count,
            f"{prefix}mean": self._seen.mean,
            f"{prefix}std": self._seen.std,
            "k": self.k,
        }

    def fresh(self) -> MeanStd:
        """The same settings."""
        return MeanStd(
            self.k, log=self.log, warmup=self.warmup, memory=self.memory, least=self.least
        )

    def state_dict(self) -> dict[str, Any]:
        """Three numbers."""
        return {"seen": self._seen.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._seen.restore(state["seen"])
