"""Sees every `GradScaler.step()` of the guarded optimizers: the steps that a scaler skips.

On overflow a scaler does not call a non-fused optimizer's `step()`, so no hook fires. While a guard
is attached `GradScaler.step` is wrapped once, for all scalers.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer


class Sees(Protocol):
    """A guard, seen from here."""

    def scaler_begins(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        """`scaler.step(optimizer)` is called."""

    def scaler_ended(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        """It has returned."""


_watchers: weakref.WeakSet[Any] = weakref.WeakSet()
_original: Any = None


def watch_scalers(watcher: Sees) -> None:
    """Tell this one."""
    global _original
    _watchers.add(watcher)
    if _original is None:
        original = _original = torch.amp.GradScaler.step

        @functools.wraps(original)
        def step(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            watchers = list(_watchers)
            for one in watchers:
                one.scaler_begins(self, optimizer)
            result = original(self, optimizer, *args, **kwargs)
            for one in watchers:
                one.scaler_ended(self, optimizer)
            return result

        torch.amp.GradScaler.step = step  # type: ignore[method-assign]


def unwatch_scalers(watcher: Sees) -> None:
    """Tell it no more; the last one takes the wrapper off."""
    global _original
    _watchers.discard(watcher)
    if _watchers or _original is None:
        return
    # Somebody may have wrapped it again meanwhile: then ours stays, and does nothing.
    if getattr(torch.amp.GradScaler.step, "__wrapped__", None) is _original:
        torch.amp.GradScaler.step = _original  # type: ignore[method-assign,assignment]
        _original = None


def still_scaled_by(scaler: torch.amp.GradScaler | None, optimizer: Optimizer) -> float:
    """What the optimizer's gradients are multiplied with now, asked outside of its step."""
    if scaler is None or not scaler.is_enabled() or scaler._scale is None:
        return 1.0
    state = scaler._per_optimizer_states.get(id(optimizer))
    if state is not None and state["stage"] is not OptState.READY:
        return 1.0
    return float(scaler.get_scale())
