"""Metrics of the user's own: functions of activations, parameters and gradients.

`Metrics` knows which functions are wanted where; what they return is collected in a `MetricBook`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchvitals.record import ConfigError
from torchvitals.stats import named

MAX_PLANS = 1024
"""A site of outputs has one of its own, and large models have hundreds."""

Function = Callable[..., Any]

ACTIVATION, PARAMETER, GRADIENT = "activation", "parameter", "gradient"
ACTIVATION_DIFFERENCE = "activation_difference"
PARAMETER_DIFFERENCE = "parameter_difference"
GRADIENT_BEFORE_CLIP = "gradient_before_clip"


@dataclass(frozen=True, slots=True)
class Metric:
    """A function, and where it is wanted."""

    kind: str
    name: str
    function: Function
    pattern: re.Pattern[str]
    aggregation: Function | None = None
    statistic: Function | None = None
    """The statistic of the kernel that the function is."""
    is_mean: bool = False
    """It is the mean, or that of each row: many outputs are measured at once."""
    is_row_mean: bool = False
    """It is that of each row."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the kernel wanted of a list of sites: the same ones of each."""

    functions: list[Function]
    names: list[list[str]]
    """For each function, what its metrics are called."""
    sites: tuple[str, ...]
    _keys: dict[str, list[list[list[str]]]]

    @classmethod
    def of(cls, sites: tuple[str, ...], wanted: list[list[Metric]]) -> Statistics | None:
        """What these sites want, if all want the same statistics and nothing else."""
        if not wanted or any(found != wanted[0] for found in wanted):
            return None
        functions: dict[Function, list[str]] = {}
        for metric in wanted[0]:
            if metric.statistic is None:
                return None
            functions.setdefault(metric.statistic, []).append(metric.name)
        return cls(list(functions), list(functions.values()), sites, {})

    def keys(self, kind: str) -> list[list[list[str]]]:
        """For each function and each of its metrics, what its values are logged as."""
        # Made once: texts that are the same objects again are hashed and compared for nothing.
        known = self._keys.get(kind)
        if known is None:
            known = self._keys[kind] = [
                [[f"{kind}/{site}/{name}" for site in self.sites] for name in names]
                for names in self.names
            ]
        return known


class Metrics:
    """The metrics of a monitor."""

    def __init__(self, on_gradients: Callable[[], None] | None = None) -> None:
        """None yet. `on_gradients` is called when one of gradients is added."""
        self._on_gradients = on_gradients
        self._metrics: dict[str, dict[str, Metric]] = {}
        self._wanted: dict[tuple[str, str], list[Metric]] = {}
        self._plans: dict[tuple[str, tuple[str, ...]], Statistics | None] = {}
        self._latest: dict[str, tuple[tuple[str, ...], Statistics | None]] = {}
        """Of each kind, the sites asked about last and their plan."""
        self.changed = False
        """Whether any was added since somebody looked."""

    def add(
        self, kind: str, name: str, function: Function, regex: str, aggregation: Function | None
    ) -> None:
        """Add one; a name that is there already, a bad regex or no function is an error."""
        what = kind.replace("_", " ").capitalize()
        if not callable(function):
            raise ConfigError(f"{what} metric {name} needs a function, got {function!r}")
        if aggregation is not None and not callable(aggregation):
            raise ConfigError(f"{what} metric {name}: the aggregation is no function")
        if name in self._metrics.get(kind, {}):
            raise ConfigError(f"{what} metric {name} already exists; give this one another name")
        try:
            pattern = re.compile(regex)
        except re.error as error:
            raise ConfigError(f"{what} metric {name}: bad regex {regex!r}: {error}") from None
        statistic = named.recognised(function) if aggregation is None else None
        metric = Metric(
            kind,
            name,
            function,
            pattern,
            aggregation,
            statistic,
            is_mean=aggregation is None and named.is_mean(function),
            is_row_mean=aggregation is None and named.is_row_mean(function),
        )
        self._metrics.setdefault(kind, {})[name] = metric
        self._wanted.clear()
        self._plans.clear()
        self._latest.clear()
        self.changed = True
        if kind == GRADIENT and self._on_gradients is not None:
            self._on_gradients()

    def of(self, kind: str, site: str) -> list[Metric]:
        """Those wanted of that kind at that place (re.match on its clean name)."""
        known = self._wanted.get((kind, site))
        if known is None:
            metrics = self._metrics.get(kind, {}).values()
            known = [metric for metric in metrics if metric.pattern.match(site)]
            self._wanted[kind, site] = known
        return known

    def only_means(self) -> bool:
        """Whether activations are asked for nothing but their means, of all modules."""
        wanted = self._metrics.get(ACTIVATION, {}).values()
        return not self._metrics.get(ACTIVATION_DIFFERENCE) and all(
            metric.is_mean and metric.pattern.pattern == ".*" for metric in wanted
        )

    def __bool__(self) -> bool:
        return bool(self._metrics)

    def statistics(self, kind: str, sites: tuple[str, ...]) -> Statistics | None:
        """How to serve these sites in one pass; None where a function must be called."""
        # All parameters are the same object each time: hashing their names takes longer than what
        # the plan saves. Outputs come one by one, in tuples of their own.
        latest = self._latest.get(kind)
        if latest is not None and latest[0] is sites:
            return latest[1]
        if (kind, sites) not in self._plans:
            if len(self._plans) > MAX_PLANS:
                self._plans.clear()
            self._plans[kind, sites] = Statistics.of(sites, [self.of(kind, site) for site in sites])
        plan = self._plans[kind, sites]
        self._latest[kind] = sites, plan
        return plan

    def any_of(self, *kinds: str) -> bool:
        """Whether there are any of these kinds."""
        return any(self._metrics.get(kind) for kind in kinds)
