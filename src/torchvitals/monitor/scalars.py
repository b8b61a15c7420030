"""Numbers the user logs, and their mean when logged more than once. `placing.py`: of which step.

Several values of a name in one step (micro-batches) become their mean. NaN and Inf are stored as
what they are, and make an epoch's mean NaN or Inf too; so is a number too large for a float. A
value that can't be read is left out, and told once by its name.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from torch import Tensor

from torchvitals.record import SCALAR, ConfigError, Key, Row

log = logging.getLogger("torchvitals")

MAX_TOLD = 64
"""Names of which it is told that a value can't be read."""


class NoValue(ConfigError):
    """A tensor without numbers."""


def has_no_value(value: Any) -> bool:
    """Whether it is a tensor on the meta device."""
    return isinstance(value, Tensor) and value.is_meta


def as_number(name: str, value: Any) -> Any:
    """A float now, or a device tensor to be read later. Anything else is refused by name."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ConfigError(
                f"log({name}=…) takes one number, got a tensor of shape {tuple(value.shape)}; "
                "reduce it first, for instance with .mean()"
            )
        if value.is_complex():
            raise ConfigError(
                f"log({name}=…) takes a number or a one-element tensor, got a complex one; log its "
                "real part or .abs()"
            )
        if has_no_value(value):
            raise NoValue(
                f"log({name}=…) takes a number, got a tensor on the meta device, which has no "
                "value; log one that was computed"
            )
        if not value.is_cpu:
            # Reading would wait; a copy can't be overwritten before it is read.
            return value.detach().clone()
        value = value.item()
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        raise ConfigError(
            f"log({name}=…) takes a number or a one-element tensor, got {type(value).__name__}"
        ) from None


def together(given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of ``log({"loss": 1.0}, accuracy=0.5)`` under their names."""
    found = given[0]
    if len(given) > 1 or not isinstance(found, Mapping):
        shown = ", ".join(type(one).__name__ for one in given)
        raise ConfigError(
            f"log() takes numbers by name or one dict of them, got {shown}; for instance "
            'log(loss=loss), log({"train/loss": loss}), log({"train/loss": loss}, step=5)'
        )
    for name in found:
        if not isinstance(name, str):
            raise ConfigError(f"log() takes a dict of names to numbers, got {name!r} as a name")
        if name in named:
            raise ConfigError(f"log() was given {name!r} twice: in the dict and by name; drop one")
    return {**found, **named}


class ScalarBook:
    """Collects logged values until their step is over, and those of an epoch until it is."""

    def __init__(self) -> None:
        self._open: dict[int, dict[Key, tuple[float, int]]] = {}
        self._times: dict[int, float] = {}
        self._headers: dict[tuple[Key, ...], tuple[Key, ...]] = {}
        self._epoch: dict[str, tuple[float, int]] = {}
        self._unread: set[Key] = set()

    def add(self, step: int, time: float, numbers: Mapping[Key, Any]) -> None:
        """Take in values; device tensors are read here, on the writer's thread."""
        values = self._open.setdefault(step, {})
        self._times[step] = time
        for key, number in numbers.items():
            try:
                value = float(number)
            except Exception as error:  # the other values, and the thread, must live on
                self._tell(key, error)
                continue
            total, count = values.get(key, (0.0, 0))
            values[key] = (total + value, count + 1)
            if key.kind == SCALAR:
                total, count = self._epoch.get(key.site, (0.0, 0))
                self._epoch[key.site] = (total + value, count + 1)

    def _tell(self, key: Key, error: Exception) -> None:
        if key not in self._unread and len(self._unread) < MAX_TOLD:
            self._unread.add(key)
            log.warning(
                "torchvitals: a value logged as %s can't be read (%s: %s) and is left out; log a "
                "number or a one-element tensor.",
                key,
                type(error).__name__,
                error,
            )

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
