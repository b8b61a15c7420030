"""A small training that forwards to sinks, and rows made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import torchvitals
from torchvitals.record import Key, ModelInfo, ParameterInfo, Row, RunInfo

PARAMETERS = ("0.weight", "0.bias", "2.weight", "2.bias")


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def train(
    path: Path, sinks: Any, *, steps: int = 6, model: nn.Module | None = None, **options: Any
) -> list[float]:
    """Train a little; the losses."""
    model = model if model is not None else small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    losses = []
    with torchvitals.watch(model, optimizer, run=path, every=1, sinks=sinks, **options) as monitor:
        for step in range(1, steps + 1):
            loss = model(torch.randn(16, 8)).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)
            losses.append(loss.item())
            if step == 3:
                monitor.log_eval("val", loss=0.5, accuracy=0.25)
                monitor.event("checkpoint", "saved")
    return losses


def row(step: int, **numbers: float) -> Row:
    """A row of scalars."""
    header = tuple(map(Key.scalar, numbers))
    return Row(step, 100.0 + step, header, np.array(list(numbers.values()), dtype=np.float32))


def rows(steps: Sequence[int]) -> list[Row]:
    return [row(step, loss=1.0 / step) for step in steps]


def info(parameters: Sequence[str] = PARAMETERS) -> RunInfo:
    named = tuple(ParameterInfo(name=name, shape=(2,), dtype="float32") for name in parameters)
    model = ModelInfo(name="", modules=(), parameters=named)
    return RunInfo(name="gpt", config={"lr": 0.1, "data": {"name": "wiki"}}, models=(model,))
