"""`ZClip`: a z-score on exponential means of the norm (Kumar, Owen, Chowdhury, Güra 2025).

    z = (x − μ) / σ        flagged when z > z_limit (2.5), clipped to μ + σ · z_limit² / z
    μ ← α μ + (1 − α) x    σ² ← α σ² + (1 − α) (x − μ)²        α = 0.97, of the clipped value

The first `warmup` (25) norms give μ and σ as their plain mean and variance. With "clip" this is
ZClip; with "skip" flagged values do not enter the means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torchvitals.guard.rules.rule import NOT_YET, Judged, Rule, at_least, positive, share

EPS = 1e-6


class ZClip(Rule):
    """Flags a z-score above `k`."""

    name: ClassVar[str] = "zclip"
    settings: ClassVar[tuple[str, ...]] = ("k", "warmup")
    learns_clipped: ClassVar[bool] = True

    def __init__(self, k: float = 2.5, *, alpha: float = 0.97, warmup: int = 25) -> None:
        self.k = positive("k", k)
        self.alpha = share("alpha", alpha)
        self.warmup = at_least("warmup", warmup, 2)
        self.reset()

    def judge(self, value: float) -> Judged:
        """By its z-score."""
        if len(self._first) < self.warmup:
            return NOT_YET
        std = math.sqrt(self._var)
        limit = self._mean + self.k * std
        z = (value - self._mean) / (std + EPS)
        if z <= self.k:
            return Judged(False, limit, limit)
        return Judged(True, limit, self._mean + std * self.k * self.k / z)

    def learn(self, value: float) -> None:
        """Move the means, or gather the values they begin with."""
        if len(self._first) < self.warmup:
            self._first.append(value)
            num = len(self._first)
            self._mean = math.fsum(self._first) / num
            self._var = math.fsum((x - self._mean) ** 2 for x in self._first) / num
            return
        delta = value - self._mean
        self._mean = self.alpha * self._mean + (1.0 - self.alpha) * value
        self._var = self.alpha * self._var + (1.0 - self.alpha) * delta * delta

    def reset(self) -> None:
        """Forget."""
        self._first: list[float] = []
        self._mean, self._var = 0.0, 0.0

    def stats(self) -> dict[str, float]:
        """Both means and the limit of z."""
        return {
            "count": len(self._first),
            "mean": self._mean,
            "std": math.sqrt(self._var),
            "k": self.k,
        }

    def fresh(self) -> ZClip:
        """The same settings."""
        return ZClip(self.k, alpha=self.alpha, warmup=self.warmup)

    def state_dict(self) -> dict[str, Any]:
        """The means and what they began with."""
        return {"first": list(self._first), "mean": self._mean, "var": self._var}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._first = list(state["first"])
        self._mean, self._var = state["mean"], state["var"]
