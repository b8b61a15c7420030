"""`Sampler`: a few elements of each weight before and after the step, for the sampled change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchvitals.stats.backend import Backend, Measured
from torchvitals.stats.sample import Plan


class Sampler:
    """Samples of some weights and of their gradients, in small buffers that are reused."""

    def __init__(
        self, names: Sequence[str], tensors: Sequence[Tensor], backend: Backend, size: int
    ) -> None:
        self._backend = backend
        self._tensors = backend.fixed(tensors)
        self._plan = Plan(names, tensors, size)
        _, self._before = self._plan.flat_room(tensors)
        _, self._after = self._plan.flat_room(tensors)
        _, self._grads = self._plan.flat_room(tensors)

    def before(self) -> None:
        """Look at the weights before the step."""
        self._plan.fetch(self._tensors, self._before)

    def after(self, grads: Sequence[Tensor | None]) -> Measured:
        """Sums over the samples of the weights now, and of their change."""
        self._plan.fetch(self._tensors, self._after)
        dense = [
            line
            for line, grad in enumerate(grads)
            if grad is not None and grad.layout is torch.strided
        ]
        self._plan.only(dense).fetch(
            [grad for line in dense if (grad := grads[line]) is not None],
            [self._grads[line] for line in dense],
        )
        there = set(dense)
        return self._backend.measure_update(
            self._after,
            self._before,
            [grad if line in there else None for line, grad in enumerate(self._grads)],
        )
