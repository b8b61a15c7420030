"""`TritonBackend`: tensors on one GPU, the whole list in one launch and a small one that folds.

Cost: one read of the data, a table of 72 bytes a tensor to the device, nothing waits. Lists it
can't read at once (sparse tensors, several devices) go to the torch backend. The first use of each
kind of measurement compiles it, a few seconds; Triton keeps the result on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from torchvitals.record.bins import NUM_BINS
from torchvitals.stats import sums as s
from torchvitals.stats.backend import Activity, Bins, Measured, copy_by_operators
from torchvitals.stats.readable import FLOATS, readable
from torchvitals.stats.torch import TorchBackend, count_active, part, sent
from torchvitals.stats.triton import kernel as k

CODES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
SUMS = slice(0, len(s.FIELDS))
MAX_KEPT = 256
"""Tables of blocks that are kept on the device."""
WARPS = 8
INTERPRETED = isinstance(k.measure, InterpretedFunction)
"""Triton's interpreter reads CPU tensors; its compiler does not."""

_device, _dtype, _layout = attrgetter("device"), attrgetter("dtype"), attrgetter("layout")


class TritonBackend:
    """The Triton kernel. Reads tensors of one device; in Triton's interpreter, of the CPU."""

    name = "triton"

    def __init__(self) -> None:
        self._torch = TorchBackend()
        self._blocks: dict[tuple[torch.device, bytes], Tensor] = {}
        self._ends: dict[tuple[torch.device, bytes], Tensor] = {}

    def fixed(
        self, tensors: Iterable[Tensor], *, ours: bool = False, layout: object = None
    ) -> list[Tensor]:
        """The same list: a table is made for each call."""
        return list(tensors)

    def layout(self, _tensors: Sequence[Tensor]) -> None:
        """Nothing: what depends on shapes alone is kept anyway."""

    def measure(
        self,
        tensors: Sequence[Tensor],
        *,
        bins: Bins | None = None,
        ends: NDArray[np.float32] | None = None,
        activity: Sequence[Activity | None] | None = None,
        layout: object = None,
        thin: bool = False,
        phase: int | None = None,
    ) -> Measured:
        """Sums of each tensor; `bins` are added to."""
        with torch.no_grad():
            plain = dense(tensors)
            if plain is None:
                return self._torch.measure(
                    tensors, bins=bins, ends=ends, activity=activity, phase=phase
                )
            launch = Launch(plain, bins=bins)
            if phase is not None:
                launch.new = [part(x.view(-1), phase) for x in plain]
            launch.ends = None if ends is None else self._ends_on(launch.device, ends)
            found = self._run(launch)
            for x, counters in zip(plain, activity or (), strict=False):
                if counters is not None:
                    count_active(x, counters)
        outside = None if ends is None else found[0, :, k.OUTSIDE]
        return Measured(sums=found[0, :, SUMS], outside=outside)

    def measure_update(
        self,
        new: Sequence[Tensor],
        old: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        *,
        bins: Bins | None = None,
        delta_bins: Bins | None = None,
        roll: bool = False,
        with_grads: bool = False,
        grad_bins: Bins | None = None,
    ) -> Measured:
        """Sums of `new` and of `new − old`. With `roll`, `old` becomes `new`."""
        with torch.no_grad():
            there = [grad for grad in grads if grad is not None]
            lists = dense(new), dense(old), dense(there)
            now, before, directions = lists
            if now is None or before is None or directions is None or not alike(*lists):
                return self._torch.measure_update(
                    new, old, grads, bins=bins, delta_bins=delta_bins, roll=roll,
                    with_grads=with_grads, grad_bins=grad_bins,
                )  # fmt: skip
            rides = with_grads and list(map(wide, directions)) == list(map(wide, now))
            ready = iter(directions)
            launch = Launch(
                now,
                before,
                [None if grad is None else next(ready) for grad in grads],
                bins=bins,
                delta_bins=delta_bins,
                grad_bins=grad_bins if rides else None,
                with_grads=rides,
            )
            found = self._run(launch)
            out = Measured(
                sums=found[0, :, SUMS],
                delta_sums=found[1, :, SUMS],
                dots=found[1, :, k.DOTS : k.DOTS + 3],
            )
            if with_grads:
                alone = None if rides else self.measure(there, bins=grad_bins).sums
                out.grad_sums = found[2, :, SUMS] if alone is None else alone
            if roll:
                copy_by_operators(new, old)
        return out

    def copy(self, source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
        """Make `target` what `source` is."""
        copy_by_operators(source, target)

    def _run(self, launch: Launch) -> Tensor:
        """(planes, n, WIDTH): of the values, of the change, of the gradients."""
        found = torch.empty(
            launch.planes, launch.num, k.WIDTH, dtype=torch.float64, device=launch.device
        )
        with torch.cuda.device(launch.device) if launch.device.type == "cuda" else nullcontext():
            for kind in dict.fromkeys(map(wide, launch.new)):
                self._run_kind(launch, kind, found)
        return found

    def _run_kind(self, launch: Launch, kind: torch.dtype, found: Tensor) -> None:
        """The tensors whose differences are taken in that dtype: almost always all of them."""
        table, num_blocks = launch.table(kind)
        on_device = sent(torch.from_numpy(table), launch.device)
        # Zeros: columns that nobody asked for are added up like the others.
        partials = found.new_zeros(launch.planes, num_blocks, k.WIDTH)
        counts = [
            None if bins is None else room(bins, launch.num, launch.device)
            for bins in (launch.bins, launch.delta_bins, launch.grad_bins)
        ]
        if num_blocks:
            k.measure[(num_blocks,)](
                on_device,
                self._entry_of(table[:, 0], launch.device),
                on_device if launch.ends is None else launch.ends,
                partials,
                num_blocks,
                launch.stride,
                *(on_device if one is None else one for one in counts),
                WIDE=tl.float64 if kind is torch.float64 else tl.float32,
                ENDS=launch.ends is not None,
                CHANGE=launch.planes > 1,
                GRADS=launch.planes > 2,
                BINS=counts[0] is not None,
                DELTA_BINS=counts[1] is not None,
                GRAD_BINS=counts[2] is not None,
                num_warps=WARPS,
            )
        k.fold[(len(table), launch.planes)](on_device, partials, found, num_blocks, launch.num)

    def _entry_of(self, sizes: NDArray[np.int64], device: torch.device) -> Tensor:
        """Which tensor each block belongs to."""

        def make() -> Tensor:
            entries = np.arange(len(sizes), dtype=np.int32)
            return torch.from_numpy(np.repeat(entries, blocks_of(sizes)))

        return kept(self._blocks, (device, sizes.tobytes()), make)

    def _ends_on(self, device: torch.device, ends: NDArray[np.float32]) -> Tensor:
        ends = np.array(ends, dtype=np.float32)
        ends[ends[:, 0] == -np.inf] = np.nan  # no ends: nothing compares true
        return kept(self._ends, (device, ends.tobytes()), lambda: torch.from_numpy(ends))


class Launch:
    """What one call measures, and where results go."""

    def __init__(
        self,
        new: Sequence[Tensor],
        old: Sequence[Tensor] = (),
        grads: Sequence[Tensor | None] = (),
        *,
        bins: Bins | None = None,
        delta_bins: Bins | None = None,
        grad_bins: Bins | None = None,
        with_grads: bool = False,
    ) -> None:
        self.new, self.old, self.grads = new, old, grads
        self.bins, self.delta_bins, self.grad_bins = bins, delta_bins, grad_bins
        self.ends: Tensor | None = None
        self.num = len(new)
        self.device = new[0].device if new else torch.device("cpu")
        self.planes = 1 + bool(grads) + with_grads
        strides = [one.stride for one in (bins, delta_bins, grad_bins) if one is not None]
        self.stride = strides[-1] if strides else 1

    def table(self, kind: torch.dtype) -> tuple[NDArray[np.int64], int]:
        """The kernel's entries of the tensors of that kind, and how many blocks they have."""
        lines = [line for line, tensor in enumerate(self.new) if wide(tensor) is kind]
        table = np.zeros((len(lines), k.ENTRY), dtype=np.int64)
        table[:, 0] = [self.new[line].numel() for line in lines]
        blocks = blocks_of(table[:, 0])
        table[:, 1] = np.cumsum(blocks) - blocks
        table[:, 2] = lines
        for column, tensors in ((3, self.new), (5, self.old), (7, self.grads)):
            if tensors:
                table[:, column : column + 2] = [where(tensors[line]) for line in lines]
        return table, int(blocks.sum())


def where(tensor: Tensor | None) -> tuple[int, int]:
    """Address and code of the dtype; 0: there is none."""
    return (0, 0) if tensor is None else (tensor.data_ptr(), CODES[tensor.dtype])


def wide(tensor: Tensor) -> torch.dtype:
    """The dtype differences are taken in: float32, or float64 where the tensor is."""
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


def blocks_of(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Blocks of tensors of these sizes; an empty tensor has none."""
    return -(-sizes // k.BLOCK)


def dense(tensors: Sequence[Tensor]) -> Sequence[Tensor] | None:
    """The tensors as the kernel reads them; None where it can't read them all at once."""
    if (
        set(map(_dtype, tensors)) <= FLOATS
        and {torch.strided} >= set(map(_layout, tensors))
        and not any(tensor.is_meta for tensor in tensors)
    ):
        found = [tensor.contiguous() for tensor in tensors]
    else:
        pairs = [readable(tensor) for tensor in tensors]
        if any(zeros for _, zeros in pairs):
            return None
        found = [tensor for tensor, _ in pairs]
    devices = set(map(_device, found))
    if not INTERPRETED and any(device.type == "cpu" for device in devices):
        return None
    return found if len(devices) <= 1 else None


def alike(*lists: Sequence[Tensor] | None) -> bool:
    """Whether all lists are on one device."""
    return len({tensor.device for tensors in lists for tensor in tensors or ()}) <= 1


def kept(shelf: dict[Any, Tensor], key: tuple[torch.device, bytes], make: Any) -> Tensor:
    """A table that is the same from step to step stays on the device."""
    if key not in shelf:
        if len(shelf) >= MAX_KEPT:
            shelf.clear()
        shelf[key] = sent(make(), key[0])
    return shelf[key]


def room(bins: Bins, num: int, device: torch.device) -> Tensor:
    """Where the counts are added up."""
    if bins.counts is None:
        bins.counts = torch.zeros(num, NUM_BINS, dtype=torch.int32, device=device)
    found: Tensor = bins.counts
    return found
