"""Optimizers other than SGD and Adam: Lion, and Muon for the matrices beside AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import torchvitals
from torchvitals.testing.bases import BASES
from torchvitals.testing.fault import Fault
from torchvitals.testing.healthy.hand import Hand
from torchvitals.testing.healthy.plain import settings_of, train
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.training import Training


class Lion(Optimizer):
    """Sign of an interpolated momentum (Chen et al. 2023): every element moves by lr."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float = 1e-4, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update."""
        assert closure is None
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                moment: Tensor = self.state[parameter].setdefault(
                    "moment", torch.zeros_like(parameter)
                )
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                direction = moment.lerp(parameter.grad, 1 - first).sign_()
                parameter.add_(direction, alpha=-group["lr"])
                moment.lerp_(parameter.grad, 1 - second)


class _WithLion(Fault):
    """No fault: another optimizer."""

    def optimizer(self, training: Training) -> Optimizer:
        """A third of Adam's learning rate."""
        rate = training.settings.lr / 3
        return Lion(training.model.parameters(), lr=rate, weight_decay=0.1)


def lion_or_muon(seed: int, folder: Path, steps: int | None) -> Outcome:
    """The character GPT with Lion (odd seeds) or Muon."""
    if seed % 2 or not hasattr(torch.optim, "Muon"):
        return train("G", seed, folder, steps, fault=_WithLion(seed))
    return _muon(seed, folder, steps)


def _muon(seed: int, folder: Path, steps: int | None) -> Outcome:
    settings = settings_of("G", seed, steps or 250)  # its iterations are slow on processors
    settings.eval_every = min(settings.eval_every, 50)
    base = BASES["G"]
    training = Training(base, settings, Fault(seed))
    model = training.model
    matrices = [p for n, p in model.named_parameters() if n.startswith("layers") and p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    optimizers: list[Optimizer] = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(others, lr=settings.lr, betas=(0.9, 0.99)),
    ]
    hand = Hand(seed, settings.steps, settings=vars(settings))
    val, test = training.data.val, training.data.test

    def judge(inputs: Tensor, targets: Tensor) -> float:
        model.eval()
        with torch.no_grad():
            loss = float(base.loss(model(inputs), targets))
        model.train()
        return loss

    with torchvitals.watch(
        model, optimizers, run=folder, every=5, attention=True, total_steps=settings.steps
    ) as monitor:
        step = 0
        while step < settings.steps:
            for inputs, targets in monitor.data(training.batches()):
                step += 1
                loss = base.loss(model(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                for number, optimizer in enumerate(optimizers):
                    part = min(1.0, step / 30) * min(1.0, (settings.steps - step + 1) / 100)
                    optimizer.param_groups[0]["lr"] = part * (settings.lr if number else 0.02)
                    optimizer.step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                monitor.log(loss=loss.detach())
                hand.note(loss)
                if step % settings.eval_every == 0:
                    monitor.log_eval("val", loss=judge(*val))
                if step == settings.steps:
                    break
    return hand.outcome(test_loss=judge(*test))
