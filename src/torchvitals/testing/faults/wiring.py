"""Loops and models that are wired up wrongly."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchvitals.testing.fault import Fault
from torchvitals.testing.settings import Settings
from torchvitals.testing.training import Training


class _Detached(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.block(x)
        return out.detach()


class DetachedBlock(Fault):
    """The output of the last block is detached: nothing before it learns."""

    number, id, bases = 12, "detached-block", "C"
    names = ("orphan_parameter", "frozen_layer")
    prompt = True

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """A wrapper that detaches."""
        blocks = model.get_submodule("blocks")
        assert isinstance(blocks, nn.Sequential)
        blocks[2] = _Detached(blocks[2])
        return model


class MissingBlock(Fault):
    """Two blocks were never given to the optimizer."""

    number, id, bases = 13, "block-not-optimized", "C"
    names = ("orphan_parameter", "frozen_layer")
    prompt = True

    def optimizer(self, training: Training) -> Optimizer:
        """Without blocks.1, blocks.2 (and, in full dose, the hidden layer)."""
        left_out = ("blocks.1", "blocks.2") if self.mild else ("blocks.", "hidden.")
        return training.make_optimizer(
            [
                parameter
                for name, parameter in training.model.named_parameters()
                if not name.startswith(left_out)
            ]
        )


class SwappedModel(Fault):
    """The optimizer holds the parameters of a model that was replaced afterwards."""

    number, id, bases = 14, "model-swapped", "M"
    names = ("no_effective_step", "orphan_parameter", "frozen_layer")
    prompt = True

    def optimizer(self, training: Training) -> Optimizer:
        """Made for the model before."""
        optimizer = training.make_optimizer(training.model.parameters())
        training.model = copy.deepcopy(training.model)
        return optimizer


class NoZeroGrad(Fault):
    """`zero_grad` was forgotten: gradients pile up."""

    number, id, bases = 15, "no-zero-grad", "MG"
    names = ("gradients_not_cleared",)
    prompt = True
    keeps_gradients = True

    @classmethod
    def variant_of(cls, base: str) -> Mapping[str, Any]:
        """Adam under a rate that falls to nothing would not mind much."""
        return {"schedule": "constant"} if base == "G" else {}


class EverySecondBackward(Fault):
    """`backward` runs every second step only; the optimizer steps each time."""

    number, id, bases = 16, "backward-every-2nd", "M"
    names = ("no_effective_step", "gradients_not_cleared", "orphan_parameter")
    prompt = True

    def backward(self, training: Training, step: int, loss: Tensor) -> None:
        """Half of the batches are thrown away."""
        if step % 2 == 0:
            loss.backward()  # type: ignore[no-untyped-call]


class SlowLoader(Fault):
    """Each batch is waited for."""

    number, id, bases = 39, "slow-loader", "M"
    names = ("data_bound",)
    harms = "time"

    def loader(self, training: Training) -> Iterable[tuple[Tensor, Tensor]]:
        """Some milliseconds a batch."""
        batches = training.batches()
        pause = 0.006 if self.mild else 0.015

        class Slow:
            def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
                for batch in batches:
                    time.sleep(pause)
                    yield batch

        return Slow()


class GraphKept(Fault):
    """Losses are collected with their graphs: memory grows with every step."""

    number, id, bases = 40, "graph-kept", "M"
    names = ("memory_leak",)
    harms = "memory"
    variant = {"batch_size": 384, "width": 96, "depth": 3, "num_samples": 24_000}  # noqa: RUF012

    def settings(self, settings: Settings) -> None:
        """Nothing is kept yet."""
        self.kept: list[Tensor] = []

    def backward(self, training: Training, step: int, loss: Tensor) -> None:
        """The graph stays whole; otherwise what it holds would be freed here."""
        loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]

    def after_step(self, training: Training, step: int, loss: Tensor) -> None:
        """`total += loss` in disguise."""
        self.kept.append(loss)


class NeverEval(Fault):
    """The model stays in training mode when it is validated."""

    number, id, bases = 36, "never-eval", "C"
    names = ("train_eval_mismatch",)
    harms = "report"
    never_eval = True
    variant = {"dropout": 0.5}  # noqa: RUF012


class LogOfZero(Fault):
    """A hand-written binary cross-entropy: log(1 − p) meets p = 1."""

    number, id, bases = 19, "log-of-zero", "M"
    names = ("non_finite",)
    prompt = True

    def settings(self, settings: Settings) -> None:
        """When it happens is seen when it does."""
        self.onset = 0

    def loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """One against the rest, with a sharp sigmoid and without a guard."""
        chance = torch.sigmoid(6 * outputs)
        wanted = nn.functional.one_hot(targets, outputs.shape[-1]).float()
        return -(wanted * chance.log() + (1 - wanted) * (1 - chance).log()).sum(-1).mean()

    def after_step(self, training: Training, step: int, loss: Tensor) -> None:
        """Note the first step it happens at."""
        if not self.onset and not math.isfinite(float(loss.detach())):
            self.onset = step
