"""`Rule`: judges one value against what it has learned, then, if it was good, learns it.

The guard asks `judge(value)` before the step and calls `learn(value)` only with finite values that
were not flagged, so no rule needs to protect its statistics.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torchvitals.record import ConfigError


class Judged(NamedTuple):
    """What a rule says of a value."""

    flagged: bool
    threshold: float
    """Values above it are flagged; inf while warming up, NaN where a rule has none."""
    target: float
    """What "clip" scales the value down to."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What a callable rule is given: of the good values so far."""

    count: int
    mean: float
    std: float
    """With n − 1; NaN of fewer than two values."""
    last: float
    """NaN of none."""


class Rule(ABC):
    """Abstract; the kinds are final."""

    name: ClassVar[str]
    settings: ClassVar[tuple[str, ...]] = ()
    """Which of k, warmup and log it takes."""
    learns_clipped: ClassVar[bool] = False
    """Whether a clipped value, scaled down, enters the statistics (as ZClip is published)."""

    @abstractmethod
    def judge(self, value: float) -> Judged:
        """Of a finite value; changes nothing."""

    @abstractmethod
    def learn(self, value: float) -> None:
        """Take a good value in."""

    @abstractmethod
    def reset(self) -> None:
        """Forget, and warm up again: the user changed something that moves the norm."""

    @abstractmethod
    def stats(self) -> dict[str, float]:
        """The numbers the threshold is made of, for the event."""

    @abstractmethod
    def fresh(self) -> Rule:
        """Another one of the same settings that has learned nothing: one for each optimizer."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""


NOT_YET = Judged(False, math.inf, math.inf)


def positive(name: str, value: float) -> float:
    """The value, if it is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value) or value <= 0:
        raise ConfigError(f"{name} must be positive and finite, got {value}")
    return float(value)


def at_least(name: str, value: int, least: int) -> int:
    """The value, if it is a whole number of at least that."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
    return value


def share(name: str, value: float) -> float:
    """The value, if it lies between 0 and 1."""
    if positive(name, value) >= 1:
        raise ConfigError(f"{name} must lie between 0 and 1, got {value}")
    return float(value)
