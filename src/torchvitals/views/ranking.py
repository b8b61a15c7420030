"""`Ranking`: how the layers of one kind are put in order, the worst first, and in which words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from torchvitals.record import RunInfo

Values: TypeAlias = dict[str, float]
"""Stat → value of one site at one step; what was not measured is not there."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said about one site."""

    score: tuple[float, ...]
    """Larger is worse, the first entry that differs decides."""
    note: str = ""
    """What is out of the ordinary, in a word or two; empty when nothing is."""
    extra: Values = field(default_factory=dict)
    """Values that only make sense beside the other layers, e.g. `vs_median`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The view of one kind."""

    kind: str
    title: str
    worst: str
    """What "worst" means here, as a clause."""
    lead: str
    """The stat that is drawn over time."""
    judged: str
    """The stat that decides the order where nothing is broken."""
    stats: tuple[str, ...]
    """Columns, the most telling first: narrow terminals drop the last ones."""
    mark: str
    """Stat that only layers have, not the subtrees above them."""
    judge: Callable[[dict[str, Values], RunInfo], dict[str, Verdict]]


def not_finite(values: Values, lead: str) -> tuple[float, str]:
    """How many elements are not finite, and that in words."""
    counts = {
        "NaN": values.get("num_nan", 0.0),
        "Inf": values.get("num_posinf", 0.0) + values.get("num_neginf", 0.0),
    }
    words = ", ".join(f"{num:.0f} {name}" for name, num in counts.items() if num > 0)
    total = sum(num for num in counts.values() if num > 0)
    if not words and not math.isfinite(values.get(lead, 0.0)):
        return 1.0, f"{lead} not finite"
    return total, words


def median(values: Iterable[float]) -> float:
    """Of those that are finite and above zero; NaN when there are none."""
    good = [value for value in values if math.isfinite(value) and value > 0]
    return float(np.median(good)) if good else math.nan


def distance(value: float, from_: float) -> float:
    """|log(value / from_)|: a thousandth is as far as a thousandfold. Zero is infinitely far."""
    if not (math.isfinite(value) and math.isfinite(from_)):
        return 0.0
    return abs(math.log(value / from_)) if value > 0 else math.inf
