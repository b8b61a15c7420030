"""`Verdict`: what was judged bad about a step, on what grounds, and what was done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NON_FINITE, SPIKE, DIVERGENCE = CAUSES = ("non_finite", "spike", "divergence")


@dataclass(slots=True)
class Verdict:
    """One decision."""

    step: int
    cause: str
    """"non_finite", "spike" or "divergence"."""
    signal: str
    """"gradient_norm", "tensor_norms" or "loss"."""
    rule: str
    """The rule that flagged it; "finite" for NaN and Inf."""
    value: float
    threshold: float
    """NaN where there is none."""
    stats: Mapping[str, float] = field(default_factory=dict)
    """The numbers the threshold was made of."""
    culprits: list[str] = field(default_factory=list)
    """Parameters, the likeliest first; "rank 2" where one rank alone had a bad loss."""
    optimizer: int = 0
    """Its place among those attached."""
    done: str = ""
    """"skip", "clip", "rollback", "stop", "warn", "accept"."""
    note: str = ""
    """More about what was done."""

    @property
    def text(self) -> str:
        """One line for people."""
        what = {"gradient_norm": "gradient norm", "tensor_norms": "norm / limit"}
        words = f"{self.cause.replace('_', '-')}: {what.get(self.signal, self.signal)} "
        words += f"{self.value:.4g}"
        if math.isfinite(self.threshold):
            words += f" > {self.threshold:.4g} ({self.rule})"
        if self.culprits:
            words += f" in {', '.join(self.culprits)}"
        done = {
            "skip": "step skipped",
            "clip": "gradients scaled down",
            "rollback": "rolled back",
            "stop": "training stopped",
            "warn": "nothing done",
            "accept": "taken as the new level",
        }
        return f"{words}; {done.get(self.done, self.done)}{f': {self.note}' if self.note else ''}"

    def data(self) -> dict[str, Any]:
        """As JSON values: numbers that are not finite as words."""
        return {
            "cause": self.cause,
            "signal": self.signal,
            "rule": self.rule,
            "value": _plain(self.value),
            "threshold": _plain(self.threshold),
            "stats": {name: _plain(value) for name, value in self.stats.items()},
            "culprits": self.culprits,
            "optimizer": self.optimizer,
            "done": self.done,
            "note": self.note,
        }


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
