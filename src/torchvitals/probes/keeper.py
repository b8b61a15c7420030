"""`Keeper`: the weights as they were before the step, for the exact change."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from torchvitals.stats.backend import Backend
from torchvitals.stats.native.backend import FixedTensors, on_cpu
from torchvitals.stats.sample import Plan

_version = attrgetter("_version")

CHECK_SIZE = 16
"""Elements of each tensor compared to see whether the kept copies are still the weights. One that
differs anywhere has all of them copied anew."""


class Keeper:
    """A copy of some weights as they were before the step, kept in buffers that are reused.

    When two steps running are monitored, the copy made while measuring the first serves the
    second. Whether it still is the weight is asked of the tensor's version counter, its address
    and, because writes through `.data` leave no trace there, a few of its elements. Asking that of
    a device would wait for it: there weights are copied anew each time.
    """

    def __init__(self, names: Sequence[str], tensors: Sequence[Tensor], backend: Backend) -> None:
        self.tensors = backend.fixed(tensors)
        self._backend = backend
        self.old: list[Tensor] = []
        self._rolled_at: int | None = None
        self._marks: tuple[Any, list[int]] | None = None
        self._plan = Plan(names, tensors, CHECK_SIZE)

    @property
    def rolls(self) -> bool:
        """Whether a copy made in one step may serve the next."""
        return on_cpu(self.tensors)

    def keep(self, step: int) -> None:
        """Make sure the copy is what the weights are now."""
        if not self.old:
            self.old = self._backend.fixed(
                (torch.empty_like(t, memory_format=torch.contiguous_format) for t in self.tensors),
                ours=True,
            )
        elif self._still_right(step):
            return
        self._backend.copy(self.tensors, self.old)

    def rolled(self, step: int | None) -> None:
        """The copy was brought up to date while measuring that step (None: it was not)."""
        self._rolled_at = step
        if step is not None:
            self._marks = self._addresses(), list(map(_version, self.tensors))

    def _addresses(self) -> Any:
        """Where the tensors are; of a prepared list, where they were when last read."""
        if isinstance(self.tensors, FixedTensors):
            return self.tensors.addresses
        return list(map(Tensor.data_ptr, self.tensors))

    def _still_right(self, step: int) -> bool:
        """Whether the copy made while measuring the last step is what the weights are now."""
        return (
            self._rolled_at == step - 1
            and self._marks is not None
            and self._marks[1] == list(map(_version, self.tensors))
            and self._plan.same(self.tensors, self.old)
            and self._marks[0] == self._addresses()
        )
