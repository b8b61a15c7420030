"""Rules that keep the last values: `Rolling` (mean + 6σ of 128) and `MedianMad` (robust).

`Rolling` is the rule of OLMo-core's SkipStepOptimizer: mean + k·std of the last `window` raw
values, active from half a window on. There flagged values stay in the window; here they never
enter.

`MedianMad` takes median + k · 1.4826 · MAD, of logarithms by default: one odd value in the
window moves neither.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from torchvitals.guard.rules.rule import NOT_YET, Judged, Rule, at_least, positive
from torchvitals.record import ConfigError

TO_STD = 1.4826
"""MAD × this is the std of a normal distribution."""


class Rolling(Rule):
    """Flags what exceeds mean + k · std of the last `window` good values."""

    name: ClassVar[str] = "rolling"
    settings: ClassVar[tuple[str, ...]] = ("k", "warmup", "log")

    def __init__(
        self,
        k: float = 6.0,
        *,
        window: int = 128,
        warmup: int | None = None,
        log: bool = False,
        least: float = 1.0,
    ) -> None:
        self.k = positive("k", k)
        self.window = at_least("window", window, 4)
        self.warmup = at_least("warmup", window // 2 if warmup is None else warmup, 2)
        if self.warmup > window:
            raise ConfigError(f"warmup must fit into window={window}, got {warmup}")
        self.log = log
        self.least = positive("least", least)
        if self.least < 1:
            raise ConfigError(f"least must be at least 1, got {least}")
        self._values: deque[float] = deque(maxlen=window)

    def judge(self, value: float) -> Judged:
        """Against the window as it is now."""
        if len(self._values) < self.warmup:
            return NOT_YET
        middle, spread = self._location()
        if self.log:
            exponent = middle + max(self.k * spread, math.log(self.least))
            limit = math.exp(exponent) if exponent < 700 else math.inf
        else:
            limit = max(middle + self.k * spread, self.least * middle)
        return Judged(value > limit, limit, limit)

    def _location(self) -> tuple[float, float]:
        values = np.fromiter(self._values, np.float64, len(self._values))
        return float(values.mean()), float(values.std(ddof=1))

    def learn(self, value: float) -> None:
        """Take a good value in; the oldest leaves."""
        if not self.log:
            self._values.append(value)
        elif value > 0:
            self._values.append(math.log(value))

    def reset(self) -> None:
        """Forget."""
        self._values.clear()

    def stats(self) -> dict[str, float]:
        """Middle and spread of the window: of the logarithms, if it uses them."""
        if len(self._values) < 2:
            return {"count": len(self._values), "k": self.k}
        middle, spread = self._location()
        prefix = "log_" if self.log else ""
        return {
            "count": len(self._values),
            f"{prefix}{self._words[0]}": middle,
            f"{prefix}{self._words[1]}": spread,
            "k": self.k,
        }

    _words: ClassVar[tuple[str, str]] = ("mean", "std")

    def fresh(self) -> Rolling:
        """The same settings."""
        return type(self)(
            self.k, window=self.window, warmup=self.warmup, log=self.log, least=self.least
        )

    def state_dict(self) -> dict[str, Any]:
        """The window."""
        return {"values": list(self._values)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        self._values = deque(state["values"], maxlen=self.window)


class MedianMad(Rolling):
    """Flags what exceeds median + k · 1.4826 · MAD of the last `window` good values."""

    name: ClassVar[str] = "median_mad"
    _words: ClassVar[tuple[str, str]] = ("median", "mad_std")

    def __init__(
        self,
        k: float = 6.0,
        *,
        window: int = 128,
        warmup: int | None = None,
        log: bool = True,
        least: float = 3.0,
    ) -> None:
        super().__init__(k, window=window, warmup=warmup, log=log, least=least)

    def _location(self) -> tuple[float, float]:
        values = np.fromiter(self._values, np.float64, len(self._values))
        middle = float(np.median(values))
        return middle, TO_STD * float(np.median(np.abs(values - middle)))
