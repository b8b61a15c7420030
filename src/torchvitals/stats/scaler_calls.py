"""Sees `GradScaler.step()`, with which a scaler steps an optimizer or skips it.

A scaler that finds an overflow does not call the optimizer's `step()`, so that its hooks see
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch.amp import GradScaler
from torch.optim import Optimizer

from torchvitals.stats.swap import Swap


class ScalerCatcher:
    """Calls `begin(scaler, optimizer's number)` and `end(number)` around each `scaler.step()`.

    Neither may raise. A step that raised has no end.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        begin: Callable[[GradScaler, int], None],
        end: Callable[[int], None],
    ) -> None:
        self._numbers = {id(optimizer): number for number, optimizer in enumerate(optimizers)}
        self._begin, self._end = begin, end
        self._swap = Swap(GradScaler, "step", self._around)

    def install(self) -> None:
        """Start seeing."""
        self._swap.install()

    def remove(self) -> None:
        """Stop seeing."""
        self._swap.remove()

    def _around(self, below: Callable[..., Any]) -> Callable[..., Any]:
        catcher = self

        @wraps(below)
        def step(self: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            number = catcher._numbers.get(id(optimizer))
            if number is None or ours.__vitals_over__ or not self.is_enabled():
                return below(self, optimizer, *args, **kwargs)
            catcher._begin(self, number)
            out = below(self, optimizer, *args, **kwargs)
            catcher._end(number)
            return out

        ours: Any = step
        return step
