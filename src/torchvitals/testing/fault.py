"""`Fault`: one thing wrong with a training, at the places where a training can go wrong.

A fault overrides the stages it spoils; the stages as they stand here are the healthy training. A
fault keeps what it needs during a run in itself: make a new one for each run.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torchvitals.testing.settings import Settings, apply_change

if TYPE_CHECKING:
    from torchvitals.testing.data import Data
    from torchvitals.testing.training import Training


class Fault:
    """No fault: the clean training."""

    number: ClassVar[int] = 0
    """In the list of injected faults (docs/testing.md)."""
    id: ClassVar[str] = "clean"
    bases: ClassVar[str] = "MCGR"
    names: ClassVar[tuple[str, ...]] = ()
    """Rules that name it right: the best first, then equivalents."""
    numeric_fix: ClassVar[bool] = False
    """A number among the settings would undo it."""
    harms: ClassVar[str] = "result"
    """What it spoils: result, report, time or memory (see `harm`)."""
    prompt: ClassVar[bool] = False
    """A wiring or non-finite fault: to be found within 2 monitored steps."""
    variant: ClassVar[Mapping[str, Any]] = {}
    """Settings of both the faulty run and the clean one it is compared with."""
    keeps_gradients: ClassVar[bool] = False
    """The user forgot `zero_grad`."""
    never_eval: ClassVar[bool] = False
    """The user forgot `model.eval()`."""

    @classmethod
    def variant_of(cls, base: str) -> Mapping[str, Any]:
        """The variant of this base; for faults that need one on some bases only."""
        return cls.variant

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(f"{self.id}{seed}")
        self.mild = bool(seed % 2)
        """Odd seeds get the smaller dose, where there are two."""
        self.onset = 1
        """The step from which on it acts."""

    def settings(self, settings: Settings) -> None:
        """Change the numbers the training is made with."""

    def apply(self, settings: Settings, change: Mapping[str, Any]) -> list[str]:
        """Follow a recommendation; the names of the settings that were set."""
        return apply_change(settings, change)

    def data(self, data: Data, settings: Settings) -> Data:
        """The data; may be changed in place."""
        return data

    def loader(self, training: Training) -> Iterable[tuple[Tensor, Tensor]]:
        """What a pass over the training set is made from."""
        return training.batches()

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """The model as it is trained."""
        return model

    def optimizer(self, training: Training) -> Optimizer:
        """The optimizer."""
        return training.make_optimizer(training.model.parameters())

    def scheduler(self, training: Training) -> LRScheduler:
        """The schedule of the learning rate."""
        return training.make_scheduler()

    def lr_factor(self, step: int) -> float:
        """Times the schedule's learning rate at a step (counted from 1)."""
        return 1.0

    def batch(self, step: int, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """A batch on its way to the model."""
        return inputs, targets

    def forward(self, training: Training, inputs: Tensor) -> Tensor:
        """The model's outputs, in training."""
        out: Tensor = training.model(inputs)
        return out

    def loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the user minimises, in training."""
        return training.base.loss(outputs, targets, training.settings.reduction)

    def eval_loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the user measures in validation."""
        return training.base.loss(outputs, targets)

    def predict(self, outputs: Tensor) -> Tensor:
        """Classes from the model's outputs."""
        return outputs.argmax(-1)

    def backward(self, training: Training, step: int, loss: Tensor) -> None:
        """Gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def after_step(self, training: Training, step: int, loss: Tensor) -> None:
        """The optimizer has stepped."""

    def middle(self, steps: int) -> int:
        """A step around the middle of the run, for faults that happen once."""
        return max(2, int(steps * self.draw.uniform(0.4, 0.6)))
