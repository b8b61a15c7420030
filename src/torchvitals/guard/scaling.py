"""What a `GradScaler` has multiplied gradients with."""

from __future__ import annotations

import torch
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer


def still_scaled_by(scaler: torch.amp.GradScaler | None, optimizer: Optimizer) -> float:
    """What the optimizer's gradients are multiplied with now, asked outside of its step."""
    if scaler is None or not scaler.is_enabled() or scaler._scale is None:
        return 1.0
    state = scaler._per_optimizer_states.get(id(optimizer))
    if state is not None and state["stage"] is not OptState.READY:
        return 1.0
    return float(scaler.get_scale())
