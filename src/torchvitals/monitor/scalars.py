"""Numbers the user logs: which step they belong to, and their mean when logged more than once.

`monitor.log()` may stand anywhere in the loop. Whether it speaks of the step just done or of the
one to come is settled by its first call: before any step of the optimizer means "the one to come",
and so for the rest of the run. Several values of a name in one step (micro-batches) become their
mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from torchvitals.record import ConfigError, Key, Row


def as_number(name: str, value: Any) -> Any:
    """A float now, or a device tensor to be read later. Anything else is refused by name."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigError(
                f"log({name}=…) takes one number, got a tensor of shape {tuple(value.shape)}; "
                "reduce it first, for instance with .mean()"
            )
        value = value.detach()
        # On a device, reading would wait; a copy can't be overwritten before it is read.
        return float(value) if value.is_cpu else value.clone()
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"log({name}=…) takes a number or a one-element tensor, got {type(value).__name__}"
        ) from None


class ScalarBook:
    """Collects logged values until their step is over."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, tuple[float, int]]] = {}
        self._times: dict[int, float] = {}
        self._headers: dict[tuple[str, ...], tuple[Key, ...]] = {}

    def add(self, step: int, time: float, numbers: Mapping[str, Any]) -> None:
        """Take in values; device tensors are read here, on the writer's thread."""
        values = self._open.setdefault(step, {})
        self._times[step] = time
        for name, number in numbers.items():
            total, count = values.get(name, (0.0, 0))
            values[name] = (total + float(number), count + 1)

    def rows(self, before: int | None = None) -> list[Row]:
        """The rows of all steps before that one (None: all), each handed out once."""
        done = sorted(step for step in self._open if before is None or step < before)
        return [self._row(step) for step in done]

    @property
    def newest(self) -> int | None:
        """The newest step something was logged for."""
        return max(self._open, default=None)

    def _row(self, step: int) -> Row:
        values = self._open.pop(step)
        names = tuple(values)
        header = self._headers.setdefault(names, tuple(Key.scalar(name) for name in names))
        with np.errstate(over="ignore", invalid="ignore"):
            means = np.array([t / n for t, n in values.values()]).astype(np.float32)
        return Row(step, self._times.pop(step), header, means)
