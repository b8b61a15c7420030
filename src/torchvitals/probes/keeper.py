"""`Keeper`: the weights as they were before the step, for the exact change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchvitals.stats.backend import Backend
from torchvitals.stats.sample import Plan

CHECK_SIZE = 64
"""Elements of a tensor compared to see whether a kept copy is still the weight before the step."""


class Keeper:
    """A copy of some weights as they were before the step, kept in buffers that are reused.

    When two steps running are monitored, the copy made while measuring the first serves the
    second. Whether it still is the weight is asked of the tensor's version counter, its address
    and, because writes through `.data` leave no trace there, a few of its elements.
    """

    def __init__(self, names: Sequence[str], tensors: Sequence[Tensor], backend: Backend) -> None:
        self.tensors = backend.fixed(tensors)
        self._backend = backend
        self.old: list[Tensor] = []
        self._rolled_at: int | None = None
        self._marks: list[tuple[int, int]] = []
        self._plan = Plan(names, tensors, CHECK_SIZE)
        self._flat_now, self._now = self._plan.flat_room(tensors)
        self._flat_then, self._then = self._plan.flat_room(tensors)

    def keep(self, step: int) -> None:
        """Make sure the copy is what the weights are now."""
        if not self.old:
            self.old = self._backend.fixed(
                torch.empty_like(t, memory_format=torch.contiguous_format) for t in self.tensors
            )
            stale = list(range(len(self.tensors)))
        else:
            stale = self._stale(step)
        if stale:
            with torch.no_grad():
                torch._foreach_copy_(
                    [self.old[line] for line in stale],
                    [self.tensors[line].detach() for line in stale],
                )

    def rolled(self, step: int | None) -> None:
        """The copy was brought up to date while measuring that step (None: it was not)."""
        self._rolled_at = step
        self._marks = self._mark() if step is not None else []

    def _mark(self) -> list[tuple[int, int]]:
        return [(tensor.data_ptr(), tensor._version) for tensor in self.tensors]

    def _stale(self, step: int) -> list[int]:
        everything = list(range(len(self.tensors)))
        if self._rolled_at != step - 1:
            return everything
        marks = self._mark()
        if marks != self._marks:
            return [line for line in everything if marks[line] != self._marks[line]]
        self._plan.fetch(self.tensors, self._now)
        self._plan.fetch(self.old, self._then)
        same = all(map(torch.equal, self._flat_now, self._flat_then))
        return [] if same else everything
