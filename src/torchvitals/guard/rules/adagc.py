"""`AdaGC`: a limit for each tensor, from its own past (Wang et al. 2025, arXiv 2502.11034).

    limit_i = λ γ_i  (λ = 1.05)      γ_i ← β γ_i + (1 − β) ‖clipped g_i‖  (β = 0.98)

In the first `warmup` (100) steps γ_i is the smallest norm seen, and nothing is flagged. The paper
clips globally at 1.0 meanwhile; that is left to the user. Its action is "clip": tensors above
their limit are scaled down, the others are left alone. The event's value is the largest
‖g_i‖ / limit_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchvitals.guard.rules.rule import NOT_YET, Judged, Rule, at_least, positive, share
from torchvitals.record import ConfigError

Floats: TypeAlias = NDArray[np.float64]


class AdaGC(Rule):
    """Flags tensors above λ times the mean of their own norms."""

    name: ClassVar[str] = "adagc"
    settings: ClassVar[tuple[str, ...]] = ("k", "warmup")
    learns_clipped: ClassVar[bool] = True

    def __init__(self, k: float = 1.05, *, beta: float = 0.98, warmup: int = 100) -> None:
        self.k = positive("k", k)
        if self.k < 1:
            raise ConfigError(f"k must be at least 1 for rule='adagc', got {k}")
        self.beta = share("beta", beta)
        self.warmup = at_least("warmup", warmup, 1)
        self._means: Floats | None = None
        self._count = 0

    def factors(self, norms: Floats) -> Floats | None:
        """What each tensor is multiplied with (1: left alone); None while warming up.

        A tensor without a gradient has the norm NaN here.
        """
        if self._count < self.warmup or self._means is None or len(norms) != len(self._means):
            return None
        limit = self.k * self._means
        with np.errstate(invalid="ignore", divide="ignore"):
            over = (norms > limit) & (self._means > 0)
            return np.where(over, limit / norms, 1.0)

    def learn_norms(self, norms: Floats) -> None:
        """Take the norms in as they are after clipping."""
        self._count += 1
        if self._means is None or len(norms) != len(self._means):
            self._means = np.full(len(norms), np.nan)
        known = np.isfinite(norms)
        new = known & np.isnan(self._means)
        old = known & ~new
        if self._count <= self.warmup:
            self._means[old] = np.minimum(self._means[old], norms[old])
        else:
            self._means[old] = self.beta * self._means[old] + (1 - self.beta) * norms[old]
        self._means[new] = norms[new]

    def judge(self, value: float) -> Judged:
        """Of the largest norm / limit."""
        return NOT_YET if self._count < self.warmup else Judged(value > 1.0, 1.0, 1.0)

    def learn(self, value: float) -> None:
        """Nothing: it learns each tensor's norm."""

    def reset(self) -> None:
        """Forget."""
        self._means, self._count = None, 0

    def stats(self) -> dict[str, float]:
        """How long it has learned."""
        return {"count": self._count, "k": self.k}

    def fresh(self) -> AdaGC:
        """The same settings."""
        return AdaGC(self.k, beta=self.beta, warmup=self.warmup)

    def state_dict(self) -> dict[str, Any]:
        """Each tensor's mean."""
        means = None if self._means is None else self._means.tolist()
        return {"count": self._count, "means": means}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._count = int(state["count"])
        self._means = None if state["means"] is None else np.array(state["means"], dtype=float)
