"""Numbers the user logs: which step they belong to, and their mean when logged more than once.

`monitor.log()` may stand anywhere in the loop. Whether it speaks of the step just done or of the
one to come is settled by its first call: before any step of the optimizer means "the one to come",
and so for the rest of the run. Several values of a name in one step (micro-batches) become their
mean. NaN and Inf are stored as what they are, and make an epoch's mean NaN or Inf too.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor

from torchvitals.record import SCALAR, ConfigError, Key, Row


def as_number(name: str, value: Any) -> Any:
    """A float now, or a device tensor to be read later. Anything else is refused by name."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigError(
                f"log({name}=…) takes one number, got a tensor of shape {tuple(value.shape)}; "
                "reduce it first, for instance with .mean()"
            )
        if not value.is_cpu:
            # Reading would wait; a copy can't be overwritten before it is read.
            return value.detach().clone()
        value = value.item()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"log({name}=…) takes a number or a one-element tensor, got {type(value).__name__}"
        ) from None


class ScalarBook:
    """Collects logged values until their step is over, and those of an epoch until it is."""

    def __init__(self) -> None:
        self._open: dict[int, dict[Key, tuple[float, int]]] = {}
        self._times: dict[int, float] = {}
        self._headers: dict[tuple[Key, ...], tuple[Key, ...]] = {}
        self._epoch: dict[str, tuple[float, int]] = {}

    def add(self, step: int, time: float, numbers: Mapping[Key, Any]) -> None:
        """Take in values; device tensors are read here, on the writer's thread."""
        values = self._open.setdefault(step, {})
        self._times[step] = time
        for key, number in numbers.items():
            value = float(number)
            total, count = values.get(key, (0.0, 0))
            values[key] = (total + value, count + 1)
            if key.kind == SCALAR:
                total, count = self._epoch.get(key.site, (0.0, 0))
                self._epoch[key.site] = (total + value, count + 1)

    def end_epoch(self, step: int, time: float, number: int) -> None:
        """Means over everything logged since the last epoch ended become values of that step."""
        taken, self._epoch = self._epoch, {}
        means = {Key("epoch", name, "mean"): total / num for name, (total, num) in taken.items()}
        self.add(step, time, {Key("epoch", "run", "number"): number, **means})

    def rows(self, before: int | None = None) -> list[Row]:
        """The rows of all steps before that one (None: all), each handed out once."""
        done = sorted(step for step in self._open if before is None or step < before)
        found: list[Row] = []
        for names, steps in groupby(done, key=lambda step: tuple(self._open[step])):
            found += self._alike(names, list(steps))
        return found

    @property
    def newest(self) -> int | None:
        """The newest step something was logged for."""
        return max(self._open, default=None)

    def _alike(self, names: tuple[Key, ...], steps: list[int]) -> list[Row]:
        """The rows of steps for which the same names were logged."""
        header = self._headers.setdefault(names, names)
        means = [[t / n for t, n in self._open.pop(step).values()] for step in steps]
        with np.errstate(over="ignore", invalid="ignore"):
            table = np.array(means).astype(np.float32)
        return [
            Row(step, self._times.pop(step), header, line)
            for step, line in zip(steps, table, strict=True)
        ]
