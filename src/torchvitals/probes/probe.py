"""What every probe offers, and what probes tell each other about a step.

The live half of a probe (its hooks and `measure…` methods) runs on the training thread and only
gathers sums. The desk half (`shape`, `values`) runs on the writer's thread, on
several steps at once: their arrays are stacked, so that a fast training costs few numpy calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import MISSING, Key
from torchvitals.stats import sums as s
from torchvitals.stats.backend import Bins
from torchvitals.stats.derived import derived

MAX_HEADERS = 64
"""Headers remembered at most: a model that changes all the time must not grow our memory."""


@dataclass(slots=True)
class Notes:
    """What one probe found out about some steps that later ones use. The first axis is steps."""

    gradient_sumsq: NDArray[np.float64]
    """Σ g² of each parameter of the tree after clipping; NaN where there was no gradient."""
    gradient_norm: NDArray[np.float64]
    """‖g‖ of each chosen parameter before clipping."""
    update_ratio: NDArray[np.float64]
    """‖Δw‖ / ‖w‖ of each chosen parameter."""
    parameters: NDArray[np.intp]
    """Places of the chosen parameters among all."""
    num_frozen: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, num_steps: int, num_parameters: int) -> Notes:
        """Nothing known yet."""
        nothing = np.empty((num_steps, 0))
        everything = np.full((num_steps, num_parameters), np.nan)
        return cls(everything, nothing, nothing, np.empty(0, dtype=np.intp))


Distributions = list[tuple[tuple[tuple[str, str], ...], Bins]]
"""(kind, site) of each line of some bins."""


class Probe(Protocol):
    """Turns what it measured into columns."""

    header: tuple[Key, ...]
    """Its columns. A new tuple when columns join."""

    def shape(self, raw: Any) -> Hashable:
        """Steps whose raws have equal shapes may be stacked."""

    def values(self, raws: Sequence[Any], notes: Notes) -> NDArray[np.float32]:
        """(steps, columns) of raws of equal shape."""

    def take_bins(self) -> Distributions:
        """The histograms added up since the last time; on the training thread."""


def each(parts: Sequence[Any], field: str) -> list[NDArray[np.float64]]:
    """One field of the same part of several steps."""
    return [getattr(measured.host(), field) for _, measured in parts]


def stacked(parts: Sequence[Any], field: str) -> NDArray[np.float64]:
    """The same with steps as the first axis."""
    return np.stack(each(parts, field))


def set_stats(
    tables: Sequence[s.Sums],
    table: NDArray[np.float32],
    lines: list[int] | slice,
    *,
    skip: int = 0,
) -> NDArray[np.float64]:
    """Set the statistics of these lines of a table of several steps, (steps, lines, columns).

    `tables` are their sums; the first `skip` statistics are left out. Gives Σ x² as `derived`.
    """
    if isinstance(lines, slice):
        return derived(tables, table, skip=skip)
    found = blank((len(table), len(lines), len(s.STATS) - skip))
    sumsq = derived(tables, found, skip=skip)
    table[:, lines, : found.shape[2]] = found
    return sumsq


def same_lines(parts: Sequence[tuple[list[int], Any]]) -> Hashable:
    """Equal for parts with the same list objects: a probe keeps those of its usual steps."""
    return tuple(id(lines) for lines, _ in parts)


def places(lines: list[int], num: int) -> list[int] | slice:
    """The same lines of a table of `num`, as a slice if they are all of them: ten times as fast."""
    return slice(None) if lines == list(range(num)) else lines


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


class BinBook:
    """Bins of a probe, one for each list of lines it measures, until somebody takes them."""

    def __init__(self, stride: int, names: SiteNames) -> None:
        self._stride = stride
        self._names = names
        self._open: dict[tuple[Any, ...], Bins] = {}

    def of(self, lines: Iterable[Any]) -> Bins | None:
        """The bins these lines are added to; None when no histograms are wanted."""
        if not self._stride:
            return None
        key = tuple(lines)
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = Bins(self._stride)
        return found

    def take(self) -> Distributions:
        """What was added up since the last time."""
        taken, self._open = self._open, {}
        # Bins that were prepared for a measurement that failed have no counts.
        return [
            (self._names.of(lines), bins)
            for lines, bins in taken.items()
            if bins.counts is not None
        ]
