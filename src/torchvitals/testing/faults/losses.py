"""Losses that do not say what was meant."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from torchvitals.testing.fault import Fault
from torchvitals.testing.settings import Settings
from torchvitals.testing.training import Training


class DoubleSoftmax(Fault):
    """The model ends with a softmax, and cross-entropy takes another."""

    number, id, bases = 28, "double-softmax", "C"
    names = ("wrong_loss_input",)
    prompt = True

    def forward(self, training: Training, inputs: Tensor) -> Tensor:
        """Probabilities where logits belong."""
        out: Tensor = training.model(inputs).softmax(-1)
        return out

    def eval_loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """The same mistake."""
        return training.base.loss(outputs.softmax(-1), targets)


class SquaredIds(Fault):
    """One output, trained by mean squared error on the numbers of the classes."""

    number, id, bases = 29, "mse-on-class-ids", "M"
    names = ("wrong_loss_input",)
    prompt = True

    def model(self, model: nn.Module, settings: Settings) -> nn.Module:
        """A head with one output."""
        model.head = nn.Linear(settings.width, 1)
        return model

    def loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """Class 4 is no larger than class 1."""
        return F.mse_loss(outputs.squeeze(-1), targets.to(outputs.dtype))

    def eval_loss(self, training: Training, outputs: Tensor, targets: Tensor) -> Tensor:
        """The same mistake."""
        return self.loss(training, outputs, targets)

    def predict(self, outputs: Tensor) -> Tensor:
        """The nearest class."""
        return outputs.squeeze(-1).round().long()


class SummedLoss(Fault):
    """The loss is summed over the batch instead of averaged."""

    number, id, bases = 37, "summed-loss", "M"
    names = ("summed_loss", "lr_too_high", "loss_at_start")
    numeric_fix = True
    variant = {"optimizer": "sgd", "lr": 0.03}  # noqa: RUF012  Adam would not mind

    def settings(self, settings: Settings) -> None:
        """reduction="sum"."""
        settings.reduction = "sum"
