"""`Keeper`: the weights as they were before the step, for the exact change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchvitals.stats.sample import Plan

CHECK_SIZE = 64
"""Elements of a tensor compared to see whether a kept copy is still the weight before the step."""


class Keeper:
    """A copy of the weights as they were before the step, kept in buffers that are reused.

    When two steps running are monitored, the copy made while measuring the first serves the
    second. Whether it still is the weight is asked of the tensor's version counter, its address
    and, because writes through `.data` leave no trace there, a few of its elements.
    """

    def __init__(self, names: Sequence[str], tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._old: list[Tensor] | None = None
        self._marks: dict[int, tuple[int, int]] = {}
        self._rolled_at: dict[int, int | None] = {}
        self._plan = Plan(names, tensors, CHECK_SIZE)
        self._now = self._plan.room(tensors)
        self._then = self._plan.room(tensors)

    def keep(self, lines: list[int], step: int) -> None:
        """Make sure the copy of these lines is what the weights are now."""
        if self._old is None:
            self._old = [
                torch.empty_like(t, memory_format=torch.contiguous_format) for t in self._tensors
            ]
        stale = [line for line in lines if not self._fresh(line, step)]
        if not stale and not self._same(lines):
            stale = lines
        if stale:
            with torch.no_grad():
                torch._foreach_copy_(
                    [self._old[line] for line in stale],
                    [self._tensors[line].detach() for line in stale],
                )

    def kept(self, lines: list[int]) -> list[Tensor]:
        """The copies."""
        assert self._old is not None  # keep() came first
        return [self._old[line] for line in lines]

    def rolled(self, lines: list[int], step: int | None) -> None:
        """The copies were brought up to date while measuring that step (None: they were not)."""
        for line in lines:
            tensor = self._tensors[line]
            self._rolled_at[line] = step
            self._marks[line] = (tensor.data_ptr(), tensor._version)

    def _fresh(self, line: int, step: int) -> bool:
        tensor = self._tensors[line]
        return self._rolled_at.get(line) == step - 1 and self._marks.get(line) == (
            tensor.data_ptr(),
            tensor._version,
        )

    def _same(self, lines: list[int]) -> bool:
        assert self._old is not None
        plan = self._plan.only(lines)
        now, then = [self._now[k] for k in lines], [self._then[k] for k in lines]
        plan.fetch([self._tensors[k] for k in lines], now)
        plan.fetch([self._old[k] for k in lines], then)
        return all(map(torch.equal, now, then))
