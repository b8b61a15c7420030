"""`MetricBook`: what metrics of the user's own returned in a step.

Whatever a function returns (a tensor of any shape, a number) is flattened; values of several
micro-batches are joined and averaged over their elements, or given to the metric's own aggregation.
A function that raises or returns nothing usable is told once, with the metric, the place and the
step, and the training goes on. So is one that writes into what it is given, which changes the
training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from reprlib import repr as shorter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchvitals.monitor.metrics import Function, Metric, Metrics
from torchvitals.record import ConfigError
from torchvitals.stats import named
from torchvitals.stats.backend import Backend

log = logging.getLogger("torchvitals")


class MetricBook:
    """What was logged in one step.

    Values of a key belong together: where any of them came with an aggregation, it gets them all.
    """

    def __init__(self, on_trouble: Callable[[str], None] | None = None) -> None:
        self._plain: dict[str, float] = {}
        """Values that need no averaging: most of them."""
        self._sums: dict[str, tuple[Any, int]] = {}
        self._joined: dict[str, tuple[Function, list[Tensor]]] = {}
        self._told: set[tuple[str, ...]] = set()
        self._on_trouble = on_trouble
        self.step: int | None = None

    @torch.no_grad()
    def run(self, metric: Metric, site: str, *tensors: Tensor, kind: str = "") -> None:
        """Call a metric's function and keep what it returns."""
        key = f"{kind or metric.kind}/{site}/{metric.name}"
        versions = list(map(_version, tensors))
        try:
            value = metric.function(*tensors)
            if not is_value(value):
                raise TypeError(
                    f"it returned {type(value).__name__}; a metric returns a tensor or a number"
                )
            if isinstance(value, Tensor) and not value.numel() and metric.aggregation is None:
                self.tell_empty(metric, site)
            else:
                self._keep(key, value, metric.aggregation)
        except Exception as error:  # the user's function, or what it returned
            self._tell(metric, site, error)
        if list(map(_version, tensors)) != versions:
            self._tell_once(
                (metric.kind, metric.name, "writes"),
                f"{metric.kind} metric {metric.name!r} wrote into the tensor it was given, at "
                f"{site} in step {self.step}: that changes the training. Let it work on a copy "
                "(x.clone()), or use operators whose names do not end with an underscore",
            )

    def put(self, values: dict[str, float]) -> None:
        """Keep numbers that are each one call's."""
        known = (self._plain, self._sums, self._joined)
        if all(held.keys().isdisjoint(values.keys()) for held in known):
            self._plain.update(values)
            return
        for key, value in values.items():
            self._keep(key, value)

    def add(self, key: str, value: Any, aggregation: Function | None = None) -> None:
        """Keep a value that somebody logs: a tensor of any shape, or a number."""
        if not is_value(value):
            raise ConfigError(
                f"what is logged as {key!r} must be a number or a tensor, got {shorter(value)} "
                f"({type(value).__name__}); make a tensor of a list or an array: torch.as_tensor(…)"
            )
        self._keep(key, value, aggregation)

    def _keep(self, key: str, value: Any, aggregation: Function | None = None) -> None:
        if key in self._plain:
            self._sums[key] = (self._plain.pop(key), 1)
        if aggregation is not None and key not in self._joined:
            self._joined[key] = (aggregation, self._before(key))
        if key in self._joined:
            self._joined[key][1].append(_flat(value).clone())
            return
        total, num = self._sums.get(key, (0.0, 0))
        if not isinstance(value, Tensor):
            self._sums[key] = (total + _number(value), num + 1)
        elif value.numel():
            flat = value.detach().reshape(-1)
            # Wide before adding up: bf16 has three digits.
            wide = flat if flat.dtype is torch.float64 else flat.float()
            self._sums[key] = (total + wide.sum(), num + flat.numel())

    def _before(self, key: str) -> list[Tensor]:
        """What was logged under that key before its aggregation was known."""
        total, num = self._sums.pop(key, (0.0, 0))
        if num > 1:
            self._tell_once(
                ("aggregation", key, "late"),
                f"{key} was given an aggregation in step {self.step} after {num} values were "
                "logged without it: these are left out; give it with the first value",
            )
        return [_flat(total)] if num == 1 else []

    def drop(self) -> None:
        """Forget what the step gathered."""
        self._plain, self._sums, self._joined = {}, {}, {}

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

    def tell_empty(self, metric: Metric, site: str) -> None:
        """A metric returned a tensor without elements there."""
        self._tell(metric, site, ValueError("it returned an empty tensor"))

    def _tell(self, metric: Metric, site: str, error: Exception) -> None:
        self._tell_once(
            (metric.kind, metric.name),
            f"{metric.kind} metric {metric.name!r} failed at {site} in step {self.step} "
            f"({type(error).__name__}: {error}); it has no value there, and this is not told again",
        )

    def _tell_aggregation(self, key: str, error: Exception) -> None:
        self._tell_once(
            ("aggregation", key.rpartition("/")[2]),
            f"the aggregation of {key} failed in step {self.step} "
            f"({type(error).__name__}: {error})",
        )

    def _tell_once(self, about: tuple[str, ...], text: str) -> None:
        if about not in self._told:
            self._told.add(about)
            self._say(text)

    def _say(self, text: str) -> None:
        log.warning("torchvitals: %s", text)
        if self._on_trouble is not None:
            self._on_trouble(text)


def is_value(value: Any) -> bool:
    """Whether it is what a metric may return: a tensor, or a real number of any type."""
    if isinstance(value, Tensor | int | float):
        return True
    if isinstance(value, np.generic | np.ndarray):
        return value.size == 1 and value.dtype.kind in "biuf"
    return isinstance(value, Number) and not isinstance(value, complex)


def _number(value: Any) -> float:
    return float(value.item() if isinstance(value, np.ndarray) else value)


def _flat(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().reshape(-1)
    return torch.tensor([_number(value)])


def _version(tensor: Tensor) -> int:
    """How often it was written into; inference tensors do not count."""
    return 0 if tensor.is_inference() else tensor._version


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
