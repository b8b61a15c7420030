"""What every probe offers, and what probes tell each other about a step.

The live half of a probe (its hooks and `measure…` methods) runs on the training thread and only
gathers sums. The desk half (`header`, `values`, `histograms`) runs on the writer's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import MISSING, Counts, Key
from torchvitals.stats import sums as s

MAX_HEADERS = 64
"""Headers remembered at most: a model that changes all the time must not grow our memory."""


@dataclass(slots=True)
class Notes:
    """What one probe found out about a step that later ones use."""

    gradient_sumsq: NDArray[np.float64]
    """Σ g² of each parameter of the tree after clipping; NaN where there was no gradient."""
    gradient_norm: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """‖g‖ of each chosen parameter before clipping."""
    update_ratio: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """‖Δw‖ / ‖w‖ of each chosen parameter."""
    num_frozen: int | None = None


class Probe(Protocol):
    """Turns what it measured in a step into columns."""

    header: tuple[Key, ...]
    """Its columns. A new tuple when columns join."""

    def values(self, raw: Any, notes: Notes) -> NDArray[np.float32]:
        """One value for each column of the header."""

    def histograms(self, raw: Any) -> tuple[tuple[tuple[str, str], ...], Counts] | None:
        """(kind, site) lines and their counts, or None."""


def stat_keys(kind: str, sites: Sequence[str], stats: Sequence[str] = s.STATS) -> list[Key]:
    """The columns of each site in turn."""
    return [Key(kind, site, stat) for site in sites for stat in stats]


def blank(shape: int | tuple[int, ...]) -> NDArray[np.float32]:
    """An array in which nothing is measured yet."""
    return np.full(shape, MISSING, dtype=np.float32)


def to_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Narrow to the row's type; what float32 can't hold becomes ±inf, without a warning."""
    with np.errstate(over="ignore", under="ignore"):
        return values.astype(np.float32)


class SiteNames:
    """(kind, site) tuples of histogram lines: the same tuple object for the same lines.

    The store knows a header by its identity, so that a step need not compare thousands of names.
    """

    def __init__(self, name_of: Callable[[Any], tuple[str, str]]) -> None:
        self._name_of = name_of
        self._known: dict[tuple[Any, ...], tuple[tuple[str, str], ...]] = {}

    def of(self, lines: Iterable[Any]) -> tuple[tuple[str, str], ...]:
        """The names of these lines."""
        key = tuple(lines)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > MAX_HEADERS:
                self._known.clear()
            found = self._known[key] = tuple(self._name_of(line) for line in key)
        return found
