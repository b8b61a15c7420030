"""`Aside`: skip a step by taking the gradients away while the optimizer runs.

An optimizer of torch.optim passes over parameters whose `.grad` is None: weights, moments and step
counters stay bit for bit what they were. Zeroed gradients would not do: momentum and weight decay
would still move the weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class Aside:
    """Holds the gradients of one skipped step."""

    def __init__(self) -> None:
        self._held: list[tuple[Tensor, Tensor]] = []

    @property
    def holds(self) -> bool:
        """Whether a step is being skipped."""
        return bool(self._held)

    def take(self, parameters: Sequence[Tensor]) -> None:
        """Take them away."""
        self._held = [(p, p.grad) for p in parameters if p.grad is not None]
        for parameter, _ in self._held:
            parameter.grad = None

    def put_back(self) -> None:
        """Give them back: the user's loop may look at them, and zeroes them itself."""
        for parameter, grad in self._held:
            if parameter.grad is None:
                parameter.grad = grad
        self._held = []
