"""A probe of one's own: the largest singular value of every weight matrix.

Once installed: ``torchvitals.watch(…, probes=["spectral"])``; the columns are
``probe/<parameter>/spectral_norm``.
"""

from torch import Tensor, nn
from torch.linalg import matrix_norm
from torch.optim import Optimizer

from torchvitals import Key


class Spectral:
    """Asked at the end of every monitored step."""

    def __init__(self) -> None:
        self._weights: dict[Key, Tensor] = {}

    def open(self, models: dict[str, nn.Module], optimizers: list[Optimizer]) -> None:
        """Called once, by `watch()`: what is watched. One model has the name ""."""
        self._weights = {
            Key("probe", f"{prefix}.{name}" if prefix else name, "spectral_norm"): parameter
            for prefix, model in models.items()
            for name, parameter in model.named_parameters()
            if parameter.ndim == 2
        }

    def measure(self, step: int) -> dict[Key, Tensor]:
        """Numbers of this step; one-element tensors on a device are read later."""
        return {key: matrix_norm(weight, ord=2) for key, weight in self._weights.items()}

    def close(self) -> None:
        """Called at the end of the run."""
        self._weights = {}
