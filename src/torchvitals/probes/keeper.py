"""`Keeper`: the weights as they were before the step, for the exact change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import add, attrgetter, sub

import torch
from torch import Tensor

from torchvitals.probes.turns import turns_for
from torchvitals.stats.backend import Backend
from torchvitals.stats.native.tables import FixedTensors, on_cpu
from torchvitals.stats.sample import Plan

_version = attrgetter("_version")

ADDRESS = 8
"""Bytes."""

CHECK_SIZE = 16
"""Elements of a tensor compared to see whether the kept copy is still the weight. One that differs
anywhere has all of them copied anew."""

SURPRISES = 3
"""So often may an optimizer write into weights another number of times than the step before, and
still be taken at its word."""


class Keeper:
    """A copy of some weights as they were before the step, kept in buffers that are reused.

    When two steps running are monitored, the copy made while measuring the first serves the
    second. Whether it still is the weight is asked of the tensor's version counter, and, because
    writes through `.data` leave no trace there, of its address and a few of its elements. Asking
    that of a device would wait for it: there weights are copied anew each time. Elements are
    compared in turns, until one of them has differed.
    """

    def __init__(self, names: Sequence[str], tensors: Sequence[Tensor], backend: Backend) -> None:
        self.tensors = backend.fixed(tensors)
        self._names = names
        self._backend = backend
        self.old: list[Tensor] = []
        self._rolled_at: int | None = None
        self._before: list[int] = []
        """Versions before the step."""
        self._gain: list[int] | None = None
        """How often a step writes into each weight, once that is known."""
        self._expected: list[int] = []
        """Versions after the step, if it wrote as often as the one before."""
        self._surprises = 0
        self._places = b""
        """Where the weights were after the step."""
        self._parts: list[Part] = []
        self._turn = 0

    @property
    def rolls(self) -> bool:
        """Whether a copy made in one step may serve the next: of tensors read as they are."""
        if isinstance(self.tensors, FixedTensors) and self.tensors.copied:
            return False
        return on_cpu(self.tensors)

    def keep(self, step: int) -> None:
        """Make sure the copy is what the weights are now."""
        self._before = list(map(_version, self.tensors)) if self.rolls else []
        if not self.old:
            self.old = self._backend.fixed(
                (torch.empty_like(t, memory_format=torch.contiguous_format) for t in self.tensors),
                ours=True,
            )
            self._split(turns_for(len(self.tensors)))
        elif self._rolled_at == step - 1 and self._still_right():
            return
        self._backend.copy(self.tensors, self.old)

    def rolled(self, step: int | None) -> None:
        """The copy was brought up to date while measuring that step (None: it was not)."""
        self._rolled_at = step
        if step is None:
            return
        self._places = _addresses(self.tensors)
        if self._gain is not None:
            self._expected = list(map(add, self._before, self._gain))
        else:
            self._expected = list(map(_version, self.tensors))
            if self._surprises <= SURPRISES:
                self._gain = list(map(sub, self._expected, self._before))

    def _split(self, turns: int) -> None:
        """Check elements of one tensor in `turns` at a time."""
        length = -(-len(self.tensors) // turns)
        self._parts = [
            Part(self._names, self.tensors, self.old, self._backend, slice(first, first + length))
            for first in range(0, len(self.tensors), length)
        ]

    def _still_right(self) -> bool:
        """Whether the copy made while measuring the last step is what the weights are now."""
        if self._before != self._expected:
            self._gain = None
            self._surprises += 1
            return False
        self._turn = (self._turn + 1) % len(self._parts)
        if self._parts[self._turn].same(self._places):
            return True
        # Somebody writes around the counters, and may do so again: all are looked at from now on.
        self._split(1)
        return False


class Part:
    """Some of the weights and their copies."""

    def __init__(
        self,
        names: Sequence[str],
        tensors: Sequence[Tensor],
        old: Sequence[Tensor],
        backend: Backend,
        which: slice,
    ) -> None:
        self._bytes = slice(which.start * ADDRESS, which.stop * ADDRESS)
        self._tensors = backend.fixed(tensors[which])
        self._old = backend.fixed(old[which], ours=True)
        self._plan = Plan(names[which], self._tensors, CHECK_SIZE)

    def same(self, places: bytes) -> bool:
        """Whether the samples hold the same bits, and of all weights' places theirs are right."""
        same = self._plan.same(self._tensors, self._old)
        return same and _addresses(self._tensors) == places[self._bytes]


def _addresses(tensors: list[Tensor]) -> bytes:
    """Where the tensors are; of a prepared list, where they were when last read."""
    if isinstance(tensors, FixedTensors):
        return tensors.addresses
    return b"".join(tensor.data_ptr().to_bytes(ADDRESS, sys.byteorder) for tensor in tensors)
