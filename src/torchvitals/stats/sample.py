"""Which elements of a weight the sampled updates look at, and how they are fetched.

`sample_size` elements a tensor, in whole cache lines of 16 neighbours spread at an odd stride, from
a start that is a hash of the tensor's name: the same in every process and every run. Whole lines at
an odd stride follow the tensor's scale far better than one block or every k-th element do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from torchvitals.stats.native.library import Gather, kernel
from torchvitals.stats.native.tables import FixedTensors, Table, address, on_cpu

LINE = 16


class Plan:
    """The positions to look at in each of a list of tensors, fixed by name and size."""

    def __init__(self, names: Sequence[str], tensors: Sequence[Tensor], size: int) -> None:
        wanted = max(size // LINE, 1)
        places = [
            _place(name, tensor.numel() // LINE, wanted) if tensor.numel() > wanted * LINE
            # A small tensor is looked at whole.
            else (0, 1, 0)
            for name, tensor in zip(names, tensors, strict=True)
        ]  # fmt: skip
        start, stride, lines = zip(*places, strict=True) if places else ((), (), ())
        self.start = np.array(start, dtype=np.int64)
        self.stride = np.array(stride, dtype=np.int64)
        self.lines = np.array(lines, dtype=np.int64)
        self.sizes = [
            int(n) * LINE if n else tensor.numel() for n, tensor in zip(lines, tensors, strict=True)
        ]
        self._last: tuple[Table, Table, Gather] | None = None
        self._parts: dict[tuple[int, ...], Plan] = {}
        self._positions: dict[tuple[int, torch.device], Tensor] = {}

    def only(self, lines: Sequence[int]) -> Plan:
        """The plan of some of the tensors. Asking twice for the same ones gives the same plan."""
        key = tuple(lines)
        if key == tuple(range(len(self.sizes))):
            return self
        if key not in self._parts:
            part = Plan((), (), 0)
            part.start, part.stride = self.start[list(key)], self.stride[list(key)]
            part.lines, part.sizes = self.lines[list(key)], [self.sizes[line] for line in key]
            self._parts[key] = part
        return self._parts[key]

    def room(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Buffers for one sample of each tensor, in float32 (float64 for float64 tensors)."""
        return [
            torch.empty(
                size,
                dtype=torch.float64 if tensor.dtype is torch.float64 else torch.float32,
                device=tensor.device,
            )
            for size, tensor in zip(self.sizes, tensors, strict=True)
        ]

    def flat_room(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """As `room`, but cut from one flat buffer a device and dtype; also gives these buffers."""
        kinds = [
            (t.device, torch.float64 if t.dtype is torch.float64 else torch.float32)
            for t in tensors
        ]
        views: list[Tensor] = [torch.empty(0)] * len(kinds)
        flats = []
        for kind in dict.fromkeys(kinds):
            lines = [line for line, other in enumerate(kinds) if other == kind]
            sizes = [self.sizes[line] for line in lines]
            flat = torch.empty(sum(sizes), device=kind[0], dtype=kind[1])
            flats.append(flat)
            for line, view in zip(lines, torch.split(flat, sizes), strict=True):
                views[line] = view
        return flats, prepared(views)

    def positions(self, line: int, tensor: Tensor) -> Tensor:
        """The sampled elements' indices in the flattened tensor."""
        key = (line, tensor.device)
        if key not in self._positions:
            if self.lines[line] == 0:
                index = np.arange(tensor.numel())
            else:
                available = tensor.numel() // LINE
                rows = self.start[line] + self.stride[line] * np.arange(self.lines[line])
                index = ((rows % available)[:, None] * LINE + np.arange(LINE)).ravel()
            self._positions[key] = torch.from_numpy(index).to(tensor.device)
        return self._positions[key]

    def fetch(self, tensors: Sequence[Tensor], out: Sequence[Tensor]) -> None:
        """Copy each tensor's sample into its buffer."""
        library = kernel()
        if library is None or not on_cpu(tensors):
            with torch.no_grad():
                for line, (tensor, room) in enumerate(zip(tensors, out, strict=True)):
                    room.copy_(tensor.detach().reshape(-1)[self.positions(line, tensor)])
            return
        library.torchvitals_gather(ctypes.byref(self._gather(Table.of(tensors), Table.of(out))))

    def same(self, tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
        """Whether the samples of two lists of equal dtypes and sizes hold the same bits."""
        library = kernel()
        if library is None or not on_cpu(tensors):
            now, then = self.flat_room(tensors), self.flat_room(others)
            self.fetch(tensors, now[1])
            self.fetch(others, then[1])
            return all(map(torch.equal, now[0], then[0]))
        gather = self._gather(Table.of(tensors), Table.of(others))
        return bool(library.torchvitals_same(ctypes.byref(gather)))

    def _gather(self, table: Table, out: Table) -> Gather:
        known = self._last
        if known is not None and known[0] is table and known[1] is out:
            return known[2]
        gather = Gather(
            num=table.num,
            data=table.places.data,
            count=table.places.sizes,
            dtype=table.places.dtypes,
            start=address(self.start),
            stride=address(self.stride),
            lines=address(self.lines),
            out=out.places.data,
        )
        # The tables are kept too: the struct points into them.
        self._last = (table, out, gather)
        return gather


def prepared(tensors: list[Tensor]) -> list[Tensor]:
    """Buffers that are fetched into again and again."""
    return FixedTensors(tensors, ours=True)


def _place(name: str, available: int, wanted: int) -> tuple[int, int, int]:
    """First line, step between lines (the largest odd one that fits), number of lines."""
    step = available // wanted
    return stable_hash(name) % available, step - 1 + step % 2, wanted


def stable_hash(name: str) -> int:
    """A hash of the name that no process, seed or version of Python changes."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
