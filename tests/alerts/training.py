"""A training in which things are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchvitals
from torchvitals import Monitor
from torchvitals.record import Evidence, Finding, Severity


@contextmanager
def training(
    path: Path, alerts: Any, **options: Any
) -> Iterator[tuple[Monitor, Callable[[], None]]]:
    """The monitor, and a function that trains a step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(
        model, optimizer, run=path, every=1, alerts=alerts, machine=False, **options
    ) as monitor:

        def step() -> None:
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)

        step()
        yield monitor, step


def finding(name: str = "dead_units", severity: str = "error", **fields: Any) -> Finding:
    given = {
        "sites": ("blocks.2.mlp", "blocks.3.mlp"),
        "first_step": 120,
        "last_step": 140,
        "evidence": (Evidence(text="91 % of its units are dead, healthy is below 10 %"),),
        "explanation": "Most units never fire.",
        "fix": "lower lr from 0.003 to 0.0003",
        **fields,
    }
    return Finding(name=name, severity=Severity(severity), **given)


def found(monitor: Monitor, state: str = "opened", name: str = "dead_units", **fields: Any) -> None:
    """Say it the way the diagnosis does."""
    one = finding(name, **fields)
    monitor.event("finding", one.explanation, id=name, state=state, finding=one.to_json())
