"""`Means`: metrics of activations that are plain means, of many outputs at once.

A module may be called several times in a step, with outputs of different shapes. The average over
all that a function returned weights each call with the number of its values: one of `x.mean()`, the
number of rows of `x.mean(dim=-1)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.monitor import metrics as m
from torchvitals.probes.activations import ActivationRaw, Activations, Company
from torchvitals.probes.waiting import Site
from torchvitals.stats import named

MAX_PLANS = 64


class Calls(Activations):
    """The probe that measures them; it knows how many rows each output of a step has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shapes: dict[int, tuple[list[int], list[tuple[int, ...]]]] = {}
        """By the id of a list of lines, which is kept so that it stays its own."""

    def _company(self, sites: list[Site], tensors: tuple[Tensor, ...]) -> Company:
        company = super()._company(sites, tensors)
        if id(company.lines) not in self._shapes:
            if len(self._shapes) > MAX_PLANS and self._turn == 1:
                self._shapes.clear()
            shapes = [tuple(tensor.shape) for tensor in tensors]
            self._shapes[id(company.lines)] = company.lines, shapes
        return company

    def rows(self, lines: list[int]) -> list[int]:
        """How many rows the outputs had that were measured with this list."""
        return [prod(shape[:-1]) for shape in self._shapes[id(lines)][1]]


@dataclass(frozen=True, slots=True)
class Joint:
    """How the values of one metric come out of the means of a step's calls."""

    keys: list[str]
    calls: NDArray[np.intp] | None = None
    """The calls that count, in the order in which they came; None: one for each key."""
    places: NDArray[np.intp] | None = None
    """The key of each."""
    weights: NDArray[np.float64] | None = None
    """How many values the function returns of each."""

    def values(self, means: NDArray[np.float64]) -> dict[str, float]:
        """By key, from the mean of each call."""
        if self.calls is None or self.places is None or self.weights is None:
            return dict(zip(self.keys, means.tolist(), strict=True))
        num = len(self.keys)
        total = np.bincount(self.places, self.weights * means[self.calls], num)
        found = total / np.bincount(self.places, self.weights, num)
        return dict(zip(self.keys, found.tolist(), strict=True))


Plan = list[Joint]


class Means:
    """Turns what the probe measured in a step into the metrics' values."""

    def __init__(
        self, probe: Calls, metrics: m.Metrics, tell: Callable[[m.Metric, str], None]
    ) -> None:
        self.probe = probe
        self._metrics = metrics
        self._tell = tell
        """Told of a metric and a site where all it returned was empty."""
        self._plans: dict[tuple[int, ...], tuple[Sequence[list[int]], Plan]] = {}

    def finish(self) -> dict[str, float]:
        """The step's values."""
        raw = self.probe.take()
        if not raw.parts:
            return {}
        lists = [lines for lines, _ in raw.parts]
        # Rarely an output was overwritten before it was measured: such a step is like no other.
        plan = self._make_plan(lists, raw) if raw.lost else self._plan(lists, raw)
        sums = [measured.host().sums for _, measured in raw.parts]
        all_sums = sums[0] if len(sums) == 1 else np.concatenate(sums)
        (means,) = named.values(all_sums, (named.mean,))
        if len(plan) == 1:
            return plan[0].values(means)
        return {key: value for joint in plan for key, value in joint.values(means).items()}

    def _plan(self, lists: list[list[int]], raw: ActivationRaw) -> Plan:
        """As the last time, where the same outputs came in the same order."""
        key = tuple(map(id, lists))
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) > MAX_PLANS:
                self._plans.clear()
            # The lists are kept too: their ids stay theirs.
            known = self._plans[key] = (lists, self._make_plan(lists, raw))
        return known[1]

    def _make_plan(self, lists: list[list[int]], raw: ActivationRaw) -> Plan:
        names = self.probe.names(raw.num_sites)
        sites = [names[line] for lines in lists for line in lines]
        rows = [num for lines in lists for num in self.probe.rows(lines)]
        lost = {names[line] for line in raw.lost}
        wanted: dict[str, tuple[m.Metric, list[int]]] = {}
        for call, site in enumerate(sites):
            for metric in self._metrics.of(m.ACTIVATION, site):
                if metric.is_mean and site not in lost:
                    wanted.setdefault(metric.name, (metric, []))[1].append(call)
        return [
            self._joint(metric, calls, sites, rows if metric.is_row_mean else [1] * len(rows))
            for metric, calls in wanted.values()
        ]

    def _joint(
        self, metric: m.Metric, calls: list[int], sites: list[str], nums: list[int]
    ) -> Joint:
        counted = [call for call in calls if nums[call]]
        seen = list(dict.fromkeys(sites[call] for call in counted))
        for site in dict.fromkeys(sites[call] for call in calls if not nums[call]):
            self._tell(metric, site)
        keys = [f"{m.ACTIVATION}/{site}/{metric.name}" for site in seen]
        if len(seen) == len(sites):
            return Joint(keys)  # the usual step: every output once
        place_of = {site: place for place, site in enumerate(seen)}
        return Joint(
            keys,
            np.array(counted, dtype=np.intp),
            np.array([place_of[sites[call]] for call in counted], dtype=np.intp),
            np.array([nums[call] for call in counted], dtype=np.float64),
        )
