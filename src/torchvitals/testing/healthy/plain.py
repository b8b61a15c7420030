"""Healthy variants of the bases: schedules, dropout, sparsity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from torchvitals.testing.bases import BASES
from torchvitals.testing.fault import Fault
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.settings import Settings
from torchvitals.testing.training import Training


def settings_of(letter: str, seed: int, steps: int | None, **changes: Any) -> Settings:
    """The base's settings for this seed, with changes."""
    settings = BASES[letter].settings(seed)
    for name, value in changes.items():
        setattr(settings, name, value)
    if steps is not None:
        settings.steps, settings.eval_every = steps, max(1, steps // 2)
        settings.warmup_steps = min(settings.warmup_steps, steps // 4)
        settings.num_samples = min(settings.num_samples, 1000)
    return settings


def train(
    letter: str, seed: int, folder: Path, steps: int | None, fault: Fault | None = None, **more: Any
) -> Outcome:
    """Train a base with changed settings; `fault` here is a harmless change of a stage."""
    settings = settings_of(letter, seed, steps, **more)
    return Training(BASES[letter], settings, fault or Fault(seed)).run(folder, letter)


def sgd_cosine(seed: int, folder: Path, steps: int | None) -> Outcome:
    """SGD with momentum down a cosine, after a short warm-up."""
    return train("C", seed, folder, steps, schedule="cosine", warmup_steps=25, lr=0.06)


def adamw_warmup(seed: int, folder: Path, steps: int | None) -> Outcome:
    """AdamW with a warm-up of a tenth of the run, then cosine."""
    return train("G", seed, folder, steps, warmup_steps=60, weight_decay=0.1)


def cyclical(seed: int, folder: Path, steps: int | None) -> Outcome:
    """A learning rate that goes up and down four times."""
    return train("M", seed, folder, steps, schedule="cyclical")


def wsd(seed: int, folder: Path, steps: int | None) -> Outcome:
    """Warm-up, stable, decay: the loss drops at the end."""
    return train("G", seed, folder, steps, schedule="wsd")


def high_dropout(seed: int, folder: Path, steps: int | None) -> Outcome:
    """Half of everything dropped: validation is better than training, and rightly so."""
    return train(
        "M" if seed % 2 else "C", seed, folder, steps, dropout=0.5, width=96 if seed % 2 else 16
    )


class _Sparse(Fault):
    """No fault: a penalty on activations and biases that start below zero."""

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """Keeps the ReLUs' outputs of each pass, for the penalty."""
        self.outputs: list[Tensor] = []
        for module in model.modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(lambda _m, _i, output: self.outputs.append(output))
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.bias, -0.5)
        return model

    def forward(self, training: Training, inputs: Tensor) -> Tensor:
        """Forget the pass before."""
        self.outputs.clear()
        return super().forward(training, inputs)

    def loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy and a little of the activations' mean."""
        penalty = sum((output.mean() for output in self.outputs), outputs.new_zeros(()))
        return super().loss(training, outputs, targets) + 0.05 * penalty


def sparse_cnn(seed: int, folder: Path, steps: int | None) -> Outcome:
    """A CNN most of whose activations are zero, on purpose."""
    return train("C", seed, folder, steps, fault=_Sparse(seed), width=16)
