"""`GradMonitor` with real engines: spikes, NaN, AMP, accumulation, checkpoints."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ignite.base import Serializable
from ignite.engine import Engine, Events, create_supervised_trainer
from torch import nn

from torchvitals.integrations.ignite import GradMonitor
from torchvitals.record import ConfigError

SPIKE, BROKEN = 60, 65


def data(num: int = 80) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(16, 4, generator=generator) for _ in range(num)]
    pairs = [(x, x.sum(1, keepdim=True) + 3) for x in batches]
    if num > BROKEN:
        pairs[SPIKE] = (pairs[SPIKE][0] * 1e4, pairs[SPIKE][1])
        pairs[BROKEN] = (pairs[BROKEN][0] * float("nan"), pairs[BROKEN][1])
    return pairs


def parts(lr: float = 1e-3) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=lr)


def zero_last(model: nn.Module, optimizer: torch.optim.Optimizer) -> Engine:
    def update(_engine: Engine, batch: Any) -> float:
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return Engine(update)


def supervised(model: nn.Module, optimizer: torch.optim.Optimizer) -> Engine:
    return create_supervised_trainer(model, optimizer, nn.MSELoss())


def bfloat16(model: nn.Module, optimizer: torch.optim.Optimizer) -> Engine:
    """Mixed precision with a GradScaler, as far as a CPU has it."""
    scaler = torch.amp.GradScaler("cpu")

    def update(_engine: Engine, batch: Any) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return Engine(update)


@pytest.mark.parametrize("make", [zero_last, supervised, bfloat16])
def test_a_spike_and_nan_do_not_reach_the_weights(make: Any) -> None:
    model, optimizer = parts()
    trainer = make(model, optimizer)
    verdicts: list[Any] = []
    monitor = GradMonitor(model, optimizer, k=4.0, on_spike=verdicts.append)
    assert isinstance(monitor, Serializable)
    monitor.attach(trainer)
    assert trainer.state.unhealthy_spike is False
    flags: list[bool] = []
    weights: list[torch.Tensor] = []
    norms: list[float] = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def remember(engine: Engine) -> None:
        flags.append(engine.state.unhealthy_spike)
        norms.append(engine.state.metrics["grad_norm"])
        weights.append(model.weight.detach().clone())

    trainer.run(data(), max_epochs=1)
    assert flags[SPIKE]
    assert flags[BROKEN]
    assert sum(flags) <= 4
    for bad in (SPIKE, BROKEN):
        assert torch.equal(weights[bad], weights[bad - 1])
    assert not torch.equal(weights[SPIKE + 1], weights[SPIKE])
    # The norm is that of the unscaled gradient.
    assert 0.1 < norms[0] < 100
    # What a GradScaler skips itself is seen, and not judged again.
    assert len(verdicts) == sum(flags) - (make is bfloat16)
    monitor.detach()
    assert not optimizer._optimizer_step_pre_hooks
    assert not trainer.has_event_handler(monitor._tell)


def test_the_state_goes_through_a_checkpoint() -> None:
    """Half a run, saved and loaded, decides as the whole one does."""

    def flags_of(monitor: GradMonitor, trainer: Engine, batches: Any) -> list[bool]:
        found: list[bool] = []
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda engine: found.append(engine.state.unhealthy_spike)
        )
        monitor.attach(trainer)
        trainer.run(batches, max_epochs=1)
        monitor.detach()
        return found

    model, optimizer = parts()
    whole = flags_of(GradMonitor(model, optimizer, k=4.0), zero_last(model, optimizer), data())

    model, optimizer = parts()
    first = GradMonitor(model, optimizer, k=4.0)
    trainer = zero_last(model, optimizer)
    first.attach(trainer)
    trainer.run(data()[:40], max_epochs=1)
    state = first.state_dict()
    first.detach()
    second = GradMonitor(model, optimizer, k=4.0)
    second.load_state_dict(state)
    assert flags_of(second, zero_last(model, optimizer), data()[40:]) == whole[40:]


def test_rules_actions_and_wrong_arguments() -> None:
    model, optimizer = parts()
    seen: list[float] = []

    def rule(_stats: Any, value: float) -> bool:
        seen.append(value)
        return len(seen) == 3

    monitor = GradMonitor(model, optimizer, rule=rule, action="warn")
    trainer = zero_last(model, optimizer)
    flags: list[bool] = []
    monitor.attach(trainer)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: flags.append(engine.state.unhealthy_spike)
    )
    trainer.run(data(5), max_epochs=1)
    assert flags == [False, False, True, False, False]
    monitor.detach()
    with pytest.raises(ConfigError, match="model must be"):
        GradMonitor(optimizer, optimizer)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="optimizer must be"):
        GradMonitor(model, model)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        GradMonitor(model, optimizer, action="explode")
