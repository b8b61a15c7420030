"""The four trainings that faults are injected into, and how each varies with its seed.

M  MLP classifier of points         SGD with momentum or AdamW
C  CNN classifier of pictures       SGD with momentum, cosine
G  2-layer character GPT            AdamW, warm-up, cosine, clipping
R  tanh RNN or LSTM that remembers  AdamW, clipping

Width, depth, learning rate (within a healthy range), batch size, optimizer and data change with the
seed. The seed of the data is not that of the weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from torchvitals.testing import data, models
from torchvitals.testing.data import Data
from torchvitals.testing.settings import Settings


@dataclass(frozen=True)
class Base:
    """What a kind of training is made of."""

    letter: str
    settings: Callable[[int], Settings]
    data: Callable[[Settings], Data]
    model: Callable[[Settings], nn.Module]
    attention: bool = False

    def loss(self, outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Cross-entropy of logits; those of a text are flattened."""
        if targets.dim() > 1:
            outputs, targets = outputs.flatten(0, 1), targets.flatten()
        return F.cross_entropy(outputs, targets, reduction=reduction)


def _draw(letter: str, seed: int) -> random.Random:
    return random.Random(f"{letter}{seed}")


def _mlp(seed: int) -> Settings:
    draw = _draw("M", seed)
    adam = draw.random() < 0.5
    return Settings(
        seed=seed,
        steps=600,
        batch_size=draw.choice([32, 48, 64]),
        optimizer="adamw" if adam else "sgd",
        lr=draw.uniform(1e-3, 3e-3) if adam else draw.uniform(0.02, 0.05),
        width=draw.choice([48, 64, 96]),
        depth=draw.choice([2, 3, 4]),
        num_samples=8000,
    )


def _cnn(seed: int) -> Settings:
    draw = _draw("C", seed)
    return Settings(
        seed=seed,
        steps=400,
        batch_size=draw.choice([24, 32, 48]),
        optimizer="sgd",
        lr=draw.uniform(0.02, 0.05),
        weight_decay=5e-4,
        schedule="cosine",
        width=draw.choice([8, 12, 16]),
        dropout=draw.choice([0.0, 0.1]),
        num_samples=6000,
    )


def _gpt(seed: int) -> Settings:
    draw = _draw("G", seed)
    return Settings(
        seed=seed,
        steps=450,
        batch_size=draw.choice([12, 16, 24]),
        lr=draw.uniform(2e-3, 4e-3),
        beta2=0.99,
        weight_decay=0.01,
        warmup_steps=30,
        schedule="cosine",
        clip_norm=1.0,
        width=draw.choice([32, 48]),
        depth=2,
        length=draw.choice([24, 32]),
        num_samples=8000,
    )


def _rnn(seed: int) -> Settings:
    draw = _draw("R", seed)
    return Settings(
        seed=seed,
        steps=400,
        batch_size=draw.choice([32, 48]),
        lr=draw.uniform(2e-3, 4e-3),
        clip_norm=1.0,
        width=draw.choice([32, 48]),
        activation=draw.choice(["tanh", "lstm"]),
        length=draw.choice([25, 30, 35]),
        num_samples=4000,
    )


BASES = {
    "M": Base(
        "M",
        _mlp,
        lambda s: data.clusters(1000 + s.seed, s.num_samples),
        lambda s: models.MLP(20, s.width, s.depth, 5, activation=s.activation, dropout=s.dropout),
    ),
    "C": Base(
        "C",
        _cnn,
        lambda s: data.images(1000 + s.seed, s.num_samples),
        lambda s: models.CNN(s.width, 6, norm=s.norm, dropout=s.dropout),
    ),
    "G": Base(
        "G",
        _gpt,
        lambda s: data.text(1000 + s.seed, s.num_samples, s.length, shift=s.shift),
        lambda s: models.GPT(len(data.LETTERS), s.width, s.depth, s.length, s.dropout),
        attention=True,
    ),
    "R": Base(
        "R",
        _rnn,
        lambda s: data.recall(1000 + s.seed, s.num_samples, s.length),
        lambda s: models.Recurrent(8, s.width, 6, lstm=s.activation == "lstm"),
    ),
}
