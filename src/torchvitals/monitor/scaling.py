"""Finds the GradScaler of a training: gradients are logged as what they are, not scaled up.

It is looked for where the loop that calls us keeps it: in the variables of the running functions
and in the attributes of their `self`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

LOOKS = 3
"""Monitored steps in which a scaler is looked for: it is made before the first steps."""


class Scaling:
    """Knows what gradients are multiplied with just now."""

    def __init__(self) -> None:
        self._scaler: torch.amp.GradScaler | None = None
        self._looks = 0

    def factor(self) -> float:
        """What gradients are still multiplied with; 1.0 without a scaler, or once unscaled."""
        if self._scaler is None and self._looks < LOOKS:
            self._looks += 1
            self._scaler = next(scalers(sys._getframe(1)), None)
        scaler = self._scaler
        if scaler is None or not scaler.is_enabled() or scaler._scale is None:
            return 1.0
        stages = [state["stage"] for state in scaler._per_optimizer_states.values()]
        # With several optimizers, one that was unscaled speaks for all.
        unscaled = any(stage is not OptState.READY for stage in stages)
        return 1.0 if unscaled else float(scaler.get_scale())


def scalers(frame: FrameType | None) -> Iterator[torch.amp.GradScaler]:
    """Those within reach of the running functions, the nearest first."""
    while frame is not None:
        held: list[Any] = list(frame.f_locals.values())
        owner = frame.f_locals.get("self")
        held += vars(owner).values() if hasattr(owner, "__dict__") else ()
        held += frame.f_globals.values()
        yield from (value for value in held if isinstance(value, torch.amp.GradScaler))
        frame = frame.f_back
