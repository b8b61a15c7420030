"""Metrics of the user's own: functions of activations, parameters and gradients.

`Metrics` knows which functions are wanted where; `MetricBook` collects what they return in a step.
Whatever a function returns (a tensor of any shape, a number) is flattened; values of several
micro-batches are joined and averaged over their elements, or given to the metric's own aggregation.
A function that raises or returns nothing usable is told once, with the metric, the place and the
step, and the training goes on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchvitals.record import ConfigError
from torchvitals.stats import named
from torchvitals.stats.backend import Backend

log = logging.getLogger("torchvitals")

MAX_PLANS = 64

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
    """Its average over calls is the mean of all elements: many outputs are measured at once."""


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

    def __init__(self) -> None:
        self._metrics: dict[str, dict[str, Metric]] = {}
        self._wanted: dict[tuple[str, str], list[Metric]] = {}
        self._plans: dict[tuple[str, int], tuple[tuple[str, ...], Statistics | None]] = {}
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
        is_mean = aggregation is None and named.is_mean(function)
        metric = Metric(kind, name, function, pattern, aggregation, statistic, is_mean)
        self._metrics.setdefault(kind, {})[name] = metric
        self._wanted.clear()
        self._plans.clear()
        self.changed = True

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
        # By the object: hashing hundreds of names takes longer than what the plan saves.
        known = self._plans.get((kind, id(sites)))
        if known is None:
            if len(self._plans) > MAX_PLANS:
                self._plans.clear()
            plan = Statistics.of(sites, [self.of(kind, site) for site in sites])
            known = self._plans[kind, id(sites)] = (sites, plan)
        return known[1]

    def any_of(self, *kinds: str) -> bool:
        """Whether there are any of these kinds."""
        return any(self._metrics.get(kind) for kind in kinds)


class MetricBook:
    """What was logged in one step."""

    def __init__(self, on_trouble: Callable[[str], None] | None = None) -> None:
        self._plain: dict[str, float] = {}
        """Values that need no averaging: most of them."""
        self._sums: dict[str, tuple[Any, int]] = {}
        self._joined: dict[str, tuple[Function, list[Tensor]]] = {}
        self._told: set[tuple[str, str]] = set()
        self._on_trouble = on_trouble
        self.step: int | None = None

    @torch.no_grad()
    def run(self, metric: Metric, site: str, *tensors: Tensor, kind: str = "") -> None:
        """Call a metric's function and keep what it returns."""
        key = f"{kind or metric.kind}/{site}/{metric.name}"
        try:
            self.add(key, metric.function(*tensors), metric.aggregation)
        except Exception as error:  # the user's function, or what it returned
            self._tell(metric, site, error)

    def put(self, values: dict[str, float]) -> None:
        """Keep numbers that are each one call's."""
        if self._plain.keys().isdisjoint(values) and self._sums.keys().isdisjoint(values):
            self._plain.update(values)
            return
        for key in self._plain.keys() & values.keys():
            self._sums[key] = (self._plain.pop(key), 1)
        for key, value in values.items():
            self.add(key, value)

    def add(self, key: str, value: Any, aggregation: Function | None = None) -> None:
        """Keep a value: a tensor of any shape, or a number."""
        if key in self._plain:
            self._sums[key] = (self._plain.pop(key), 1)
        if isinstance(value, Tensor):
            flat = value.detach().reshape(-1)
        elif isinstance(value, Number | np.generic) and not isinstance(value, complex):
            flat = None
        else:
            raise TypeError(
                f"it returned {type(value).__name__}; a metric returns a tensor or a number"
            )
        if aggregation is not None:
            if flat is None:
                flat = torch.tensor([float(value)])
            self._joined.setdefault(key, (aggregation, []))[1].append(flat.clone())
            return
        total, num = self._sums.get(key, (0.0, 0))
        if flat is None:
            self._sums[key] = (total + float(value), num + 1)
        elif flat.numel():
            # Wide before adding up: bf16 has three digits.
            wide = flat if flat.dtype is torch.float64 else flat.float()
            self._sums[key] = (total + wide.sum(), num + flat.numel())

    def finish(self) -> dict[str, float]:
        """The step's values; devices are asked once for all of them."""
        found: dict[str, Any] = {key: total / num for key, (total, num) in self._sums.items()}
        for key, (aggregation, parts) in self._joined.items():
            try:
                with torch.no_grad():
                    result = aggregation(torch.cat(parts))
            except Exception as error:
                self._tell_aggregation(key, error)
                continue
            if isinstance(result, Mapping):
                found |= {f"{key}{suffix}": value for suffix, value in result.items()}
            else:
                found[key] = result
        plain, self._plain, self._sums, self._joined = self._plain, {}, {}, {}
        if found:
            plain |= self._floats(found)
        return plain

    def _floats(self, found: dict[str, Any]) -> dict[str, float]:
        held = {key: value for key, value in found.items() if isinstance(value, Tensor)}
        ready: dict[str, float] = {}
        for device in dict.fromkeys(value.device for value in held.values()):
            mine = [k for k, v in held.items() if v.device == device and v.numel() == 1]
            values = torch.stack([held[key].detach().reshape(()).double() for key in mine])
            ready |= dict(zip(mine, values.tolist(), strict=True))
        out: dict[str, float] = {}
        for key, value in found.items():
            if key in ready:
                out[key] = ready[key]
                continue
            try:
                out[key] = float(value)
            except (TypeError, ValueError, RuntimeError) as error:
                self._tell_aggregation(key, error)
        return out

    def _tell(self, metric: Metric, site: str, error: Exception) -> None:
        if (metric.kind, metric.name) in self._told:
            return
        self._told.add((metric.kind, metric.name))
        self._say(
            f"{metric.kind} metric {metric.name!r} failed at {site} in step {self.step} "
            f"({type(error).__name__}: {error}); it has no value there, and this is not told again"
        )

    def _tell_aggregation(self, key: str, error: Exception) -> None:
        if ("aggregation", key.rpartition("/")[2]) not in self._told:
            self._told.add(("aggregation", key.rpartition("/")[2]))
            self._say(
                f"the aggregation of {key} failed in step {self.step} "
                f"({type(error).__name__}: {error})"
            )

    def _say(self, text: str) -> None:
        log.warning("torchvitals: %s", text)
        if self._on_trouble is not None:
            self._on_trouble(text)


def run_on_all(
    metrics: Metrics,
    book: MetricBook,
    kind: str,
    sites: tuple[str, ...],
    tensors: Sequence[Tensor],
    *,
    backend: Backend,
    log_as: str = "",
    scale: float = 1.0,
    skip_means: bool = False,
) -> None:
    """The metrics of a kind on a list of tensors and where each is.

    Statistics known by name take one pass over all tensors that want them. `scale`: what the
    tensors are to be multiplied with first (gradients that are still scaled up). `skip_means`:
    somebody else measures plain means.
    """
    plan = metrics.statistics(kind, sites) if scale == 1.0 and not skip_means else None
    if plan is not None and all(map(Tensor.numel, tensors)):
        columns = named.columns(backend, tensors, plan.functions)
        for column, lists in zip(columns, plan.keys(log_as or kind), strict=True):
            for keys in lists:
                book.put(dict(zip(keys, column, strict=True)))
        return
    known: dict[str, tuple[Tensor, list[Metric]]] = {}
    for site, tensor in zip(sites, tensors, strict=True):
        seen = tensor.detach()
        for metric in metrics.of(kind, site):
            if skip_means and metric.is_mean:
                continue
            if metric.statistic is not None and scale == 1.0 and seen.numel():
                known.setdefault(site, (seen, []))[1].append(metric)
            else:
                book.run(metric, site, seen * scale if scale != 1.0 else seen, kind=log_as)
    if not known:
        return
    wanted = [m.statistic for _, found in known.values() for m in found]
    functions = list(dict.fromkeys(function for function in wanted if function is not None))
    values = named.measure(backend, [tensor for tensor, _ in known.values()], functions)
    for (site, (_, found)), line in zip(known.items(), values, strict=True):
        for metric in found:
            value = line[functions.index(metric.statistic)]  # type: ignore[arg-type]
            book.add(f"{log_as or kind}/{site}/{metric.name}", value)
