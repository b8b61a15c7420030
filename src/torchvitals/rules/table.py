"""`Line` and `Table`: one column, and one stat of many sites, as rules read them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchvitals.rules.stored import Ints

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Line:
    """One column over time; measured NaN and Inf are in it."""

    steps: Ints
    values: Array

    def __bool__(self) -> bool:
        return len(self.steps) > 0

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def finite(self) -> Line:
        """Without NaN and Inf."""
        good = np.isfinite(self.values)
        return self if good.all() else Line(self.steps[good], self.values[good])

    def after(self, step: int) -> Line:
        """What was measured after that step."""
        late = self.steps > step
        return Line(self.steps[late], self.values[late])

    def until(self, step: int) -> Line:
        """What was measured up to that step, itself included."""
        early = self.steps <= step
        return Line(self.steps[early], self.values[early])

    def last(self, num: int) -> Array:
        """The last `num` values."""
        return self.values[-num:]


@dataclass(frozen=True, slots=True)
class Table:
    """`values[i, j]` at `steps[i]`, `sites[j]`; NaN where nothing, or NaN, was measured."""

    steps: Ints
    sites: tuple[str, ...]
    values: Array

    def __bool__(self) -> bool:
        return self.values.size > 0

    def line(self, site: str) -> Line:
        """One site's column; empty when it has none."""
        if site not in self.sites:
            return Line(self.steps[:0], np.empty(0))
        column = self.values[:, self.sites.index(site)]
        known = ~np.isnan(column)
        return Line(self.steps[known], column[known])

    def pick(self, sites: Iterable[str]) -> Table:
        """Only these sites, in the table's own order; rows without any value are dropped."""
        wanted = set(sites)
        at = [index for index, site in enumerate(self.sites) if site in wanted]
        values = self.values[:, at]
        known = ~np.isnan(values).all(axis=1) if at else np.zeros(len(values), dtype=bool)
        return Table(self.steps[known], tuple(self.sites[index] for index in at), values[known])

    def tail(self, num: int) -> Table:
        """The last `num` rows."""
        return Table(self.steps[-num:], self.sites, self.values[-num:])

    def head(self, num: int) -> Table:
        """The first `num` rows."""
        return Table(self.steps[:num], self.sites, self.values[:num])

    def typical(self, num: int) -> Array:
        """Each site's median over its last `num` rows; NaN for a site without values."""
        return median(self.values[-num:], axis=0)


def quantile(values: Array, share: float) -> Array:
    """The quantile of each row (nearest rank) of what is not NaN; NaN where nothing is."""
    ordered = np.sort(values, axis=1)
    num = np.count_nonzero(~np.isnan(ordered), axis=1)
    at = np.maximum(np.ceil(share * num).astype(np.intp) - 1, 0)
    found = np.take_along_axis(ordered, at[:, None], axis=1)[:, 0]
    return np.where(num > 0, found, np.nan)


def median(values: Array, axis: int | None = None) -> Array:
    """The median of what is not NaN; NaN, without a warning, where nothing is."""
    values = np.asarray(values, dtype=np.float64)
    ordered = np.sort(values, axis=axis if axis is not None else None)
    if axis is None:
        ordered = ordered.ravel()
        axis = 0
    num = np.count_nonzero(~np.isnan(ordered), axis=axis)
    low = np.expand_dims(np.maximum((num - 1) // 2, 0), axis)
    high = np.expand_dims(np.maximum(num // 2, 0), axis)
    high = np.minimum(high, max(ordered.shape[axis] - 1, 0))
    if not ordered.shape[axis]:
        return np.full(num.shape, np.nan)
    with np.errstate(invalid="ignore"):
        middle = np.take_along_axis(ordered, low, axis) + np.take_along_axis(ordered, high, axis)
    return np.asarray(np.where(num > 0, middle.squeeze(axis) / 2.0, np.nan))
