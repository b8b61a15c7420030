"""`LossCurve`: the training loss with its levels: at the start, at its best, now, and its noise."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from torchvitals.curves import trend_of
from torchvitals.curves.trend import Direction
from torchvitals.rules.table import Array, Line

BLOCKS = 40
BLOWN = 1.5
"""Early losses so many times the very first one are the harm of the first steps."""


class LossCurve:
    """A loss and what rules want to know of it. Levels are medians of blocks: no spike moves them.

    `several`: there are other losses or optimizers beside it (a GAN), so that it need not fall.
    """

    def __init__(self, name: str | None, line: Line, *, several: bool = False) -> None:
        self.name = name or "loss"
        self.line = line
        self.several = several

    def __bool__(self) -> bool:
        return len(self.line) > 0

    def __len__(self) -> int:
        return len(self.line)

    @cached_property
    def finite(self) -> Line:
        """Without NaN and Inf."""
        return self.line.finite

    @cached_property
    def falls(self) -> bool:
        """Whether it is a quantity that a healthy training lowers: positive, and the only one."""
        values = self.finite.values
        return not self.several and len(values) > 0 and bool((values >= 0).all())

    @cached_property
    def _blocks(self) -> tuple[Array, Array, Array]:
        """Last step, median and robust spread of each block."""
        line = self.finite
        if not len(line):
            nothing = np.empty(0)
            return nothing, nothing, nothing
        num = int(np.clip(len(line) // 5, 1, BLOCKS))
        at = np.array_split(np.arange(len(line)), num)
        medians = np.array([np.median(line.values[some]) for some in at])
        spread = np.array(
            [
                1.4826 * np.median(np.abs(line.values[some] - m))
                for some, m in zip(at, medians, strict=True)
            ]
        )
        return np.array([float(line.steps[some[-1]]) for some in at]), medians, spread

    @property
    def levels(self) -> Line:
        """The curve in at most 40 medians."""
        steps, medians, _ = self._blocks
        return Line(steps.astype(np.int64), medians)

    @cached_property
    def start(self) -> float:
        """The level of the first few steps (the very first ones, before much was learned)."""
        values = self.finite.values
        if not len(values):
            return float("nan")
        level = float(np.median(values[: max(1, min(5, len(values) // 10))]))
        # The first loss comes before the first step. Where the steps after it threw the loss up,
        # it alone tells where the run began.
        return float(values[0]) if 0 < values[0] < level / BLOWN else level

    @cached_property
    def best(self) -> float:
        """The lowest level so far."""
        medians = self._blocks[1]
        return float(min(medians.min(), self.start)) if len(medians) else float("nan")

    @cached_property
    def best_step(self) -> int:
        """Where it was."""
        steps, medians, _ = self._blocks
        return int(steps[int(np.argmin(medians))]) if len(medians) else 0

    @cached_property
    def now(self) -> float:
        """The last level."""
        medians = self._blocks[1]
        return float(medians[-1]) if len(medians) else float("nan")

    @cached_property
    def noise(self) -> float:
        """Scatter within blocks, in units of the loss."""
        spread = self._blocks[2]
        return float(np.median(spread)) if len(spread) else float("nan")

    @cached_property
    def scatter(self) -> float:
        """Scatter within blocks over their level, in the later half; no trend or step is in it."""
        _, medians, spread = self._blocks
        late = slice(len(medians) // 2, None)
        if not len(medians):
            return float("nan")
        return float(np.median(spread[late] / np.maximum(medians[late], 1e-30)))

    def recovers(self, since: int) -> bool:
        """Whether it rose at that step, and has fallen well below the start and that height since.

        Data that changed do that: the model learns the new ones.
        """
        later = self.finite.after(since - 1)
        if len(later) < 20 or self.bad_steps:
            return False
        height = float(np.max(later.values[: max(5, len(later) // 20)]))
        return self.now < 0.3 * height and self.now < 0.5 * self.start

    @cached_property
    def fallen(self) -> float:
        """How much of the start is gone: 0 nothing, 1 everything, below 0 it rose."""
        if not len(self.finite) or not self.start > 0:
            return 0.0
        return 1.0 - self.now / self.start

    @cached_property
    def direction(self) -> Direction:
        """Falling, flat or rising lately."""
        return trend_of(self.line.steps, self.line.values)

    @cached_property
    def bad_steps(self) -> list[int]:
        """Steps at which it was NaN or Inf."""
        return [int(step) for step in self.line.steps[~np.isfinite(self.line.values)]]

    def smooth(self, num: int) -> Line:
        """Running median over `num` points, each of those before it and itself."""
        line = self.finite
        if len(line) < num:
            return line
        windows = np.lib.stride_tricks.sliding_window_view(line.values, num)
        return Line(line.steps[num - 1 :], np.median(windows, axis=1))
