"""Things that happen once, in the middle of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchvitals.testing.fault import Fault
from torchvitals.testing.settings import Settings
from torchvitals.testing.training import SHIFT_AT, Training


class HugeBatch(Fault):
    """One batch is 10,000 times too large: its inputs, or for tokens its weights in the loss."""

    number, id, bases = 17, "batch-times-1e4", "MG"
    names = ("loss_spike", "gradient_spike", "tensor_spike", "input_scale")
    numeric_fix = True

    @classmethod
    def variant_of(cls, base: str) -> Mapping[str, Any]:
        """Clipping would save the run, and so would Adam a small one."""
        return {"clip_norm": None} if base == "G" else {"optimizer": "sgd", "lr": 0.03}

    def settings(self, settings: Settings) -> None:
        """Once."""
        self.onset = self.middle(settings.steps)
        self.now = False

    def batch(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Features in the wrong unit."""
        self.now = step == self.onset
        if self.now and inputs.is_floating_point():
            return inputs * 1e4, targets
        return inputs, targets

    def loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """A weight of 10,000."""
        loss = super().loss(training, outputs, targets)
        return loss * 1e4 if self.now and targets.dim() > 1 else loss


class NanInBatch(Fault):
    """One batch comes with a NaN among the weights of its samples."""

    number, id, bases = 18, "nan-in-batch", "G"
    names = ("non_finite_input", "non_finite")
    prompt = True

    def settings(self, settings: Settings) -> None:
        """Once."""
        self.onset = self.middle(settings.steps)
        self.weights: Tensor | None = None

    def batch(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """All weights 1 but one."""
        self.weights = torch.ones(len(inputs))
        if step == self.onset:
            self.weights[-1] = torch.nan
        return inputs, targets

    def loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """The weighted mean."""
        each = training.base.loss(outputs, targets, "none").view(len(targets), -1).mean(1)
        assert self.weights is not None
        return (each * self.weights).mean()


class BitFlip(Fault):
    """A bit of one weight flips: its exponent's highest."""

    number, id, bases = 20, "bit-flip", "G"
    names = (
        "weight_blow_up",
        "non_finite",
        "massive_activations",
        "loss_spike",
        "activation_scale",
    )

    def settings(self, settings: Settings) -> None:
        """Once."""
        self.onset = self.middle(settings.steps)

    def after_step(self, training: Training, step: int, loss: Tensor) -> None:
        """In the second layer; before the step `onset`, after its predecessor."""
        if step == self.onset - 1:
            weight = training.model.get_parameter("layers.1.up.weight").data.view(-1)
            place = self.draw.randrange(len(weight))
            bits = weight[place : place + 1].view(torch.int32)
            bits ^= 1 << 30


class SlowMoments(Fault):
    """β2 = 0.9999, and from a point on the data is of another kind."""

    number, id, bases = 22, "beta2-and-shift", "G"
    # The loss jumps where the data shifts in the clean run too: a spike would name the shift.
    names = ("adam_variance_lag",)
    numeric_fix = True
    variant = {"shift": True, "schedule": "constant", "clip_norm": None, "lr": 6e-3}  # noqa: RUF012

    def settings(self, settings: Settings) -> None:
        """Adam remembers the small gradients of an easy text when a hard one comes."""
        settings.beta2 = 0.9999
        self.onset = int(SHIFT_AT * settings.steps) + 1
