"""`NativeBackend`: CPU tensors through the C kernel. One call measures the whole list.

Cost: one read of the data with all of torch's threads, about a microsecond of Python a tensor.
The GIL is released meanwhile (ctypes does that).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.record import VitalsError
from torchvitals.record.bins import ZERO_BIN
from torchvitals.stats import sums as s
from torchvitals.stats.backend import (
    PART_STRIDE,
    Activity,
    Bins,
    Measured,
    copy_by_operators,
)
from torchvitals.stats.native.library import ACTIVITY, FINITE, NO_MEMORY, Batch, kernel, pool
from torchvitals.stats.native.pad import Pad
from torchvitals.stats.native.tables import (
    CODES,
    FixedTensors,
    Layout,
    Table,
    address,
    addresses_of,
    all_plain,
    room,
)

MAX_ACTIVITIES = 256
WIDTH = len(s.FIELDS)
NUM_DOTS = 3


class NativeBackend:
    """The C kernel. Reads tensors on the CPU; others must go to the torch backend."""

    name = "native"

    def __init__(self) -> None:
        library = kernel()
        if library is None:  # choose_backend() asks first
            raise VitalsError("this installation has no C kernel")
        self._library = library
        self._activities: dict[int, tuple[Any, NDArray[np.void], int]] = {}
        self.pad = Pad()
        self._single = Single(self)

    def fixed(
        self, tensors: Iterable[Tensor], *, ours: bool = False, layout: Layout | None = None
    ) -> FixedTensors:
        """The same list, for tensors that are measured again and again."""
        return FixedTensors(tensors, ours=ours, like=layout)

    def layout(self, tensors: Sequence[Tensor]) -> Layout:
        """Sizes and dtypes of lists that come anew each time with these shapes."""
        return Layout(tensors)

    def measure(
        self,
        tensors: Sequence[Tensor],
        *,
        bins: Bins | None = None,
        ends: NDArray[np.float32] | None = None,
        activity: Sequence[Activity | None] | None = None,
        layout: Layout | None = None,
        thin: bool = False,
        phase: int | None = None,
    ) -> Measured:
        """Sums of each tensor; `bins` are added to."""
        if len(tensors) == 1 and all_plain(tensors):
            return self._single.measure(tensors[0], bins, ends, activity, thin=thin, phase=phase)
        table = Table.of(tensors) if layout is None else layout.table(tensors)
        (sums,), place = self.pad.take(table.num, WIDTH)
        out = Measured(sums=sums)
        batch = table.batch(bins)
        batch.sums, batch.thin = place, thin
        if phase is not None and not table.zeros:
            batch.part, batch.phase = PART_STRIDE, phase
        if ends is not None:
            ends = np.ascontiguousarray(ends, dtype=np.float32)
            out.outside = np.zeros(len(tensors))
            batch.ends, batch.outside = address(ends), address(out.outside)
        if activity is not None:
            batch.active = self.activity(activity)
        seen = [0 if bins is None else int(bins.counts[line].sum()) for line, _ in table.zeros]
        out.finite = self.run(batch)
        for (line, zeros), before in zip(table.zeros, seen, strict=True):
            add_zeros(out, bins, line, zeros, before)
        return out

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
        """Sums of `new` and of `new − old` in one pass. With `roll`, `old` becomes `new`."""
        table, before = Table.of(new), Table.of(old)
        if table.copied and roll:
            raise VitalsError("roll needs tensors that are dense and contiguous")
        batch = table.batch(bins)
        slopes = grads.table() if isinstance(grads, FixedTensors) else None
        if slopes is not None and slopes.like(table):
            batch.grad = slopes.places.data
        else:
            directions, _read = addresses_of(grads, table)
            if with_grads and not directions.all():
                # Sparse, missing or of another dtype: they can't ride along.
                there = [grad for grad in grads if grad is not None]
                alone = self.measure(there, bins=grad_bins)
                out = self.measure_update(
                    new, old, grads, bins=bins, delta_bins=delta_bins, roll=roll
                )
                out.grad_sums = alone.sums
                return out
            batch.grad = address(directions)
        num = table.num
        widths = (WIDTH, WIDTH, NUM_DOTS, WIDTH) if with_grads else (WIDTH, WIDTH, NUM_DOTS)
        (sums, delta_sums, dots, *rest), place = self.pad.take(num, *widths)
        out = Measured(sums=sums, delta_sums=delta_sums, dots=dots)
        batch.sums = place
        batch.delta_sums = place + delta_sums.nbytes
        batch.dots = place + 2 * delta_sums.nbytes
        batch.old = before.places.data
        batch.roll = int(roll)
        if delta_bins is not None:
            batch.delta_bins = room(delta_bins, num)
            batch.stride = delta_bins.stride
        if with_grads:
            (out.grad_sums,) = rest
            batch.grad_sums = place + 2 * delta_sums.nbytes + dots.nbytes
            if grad_bins is not None:
                batch.grad_bins = room(grad_bins, num)
                batch.stride = grad_bins.stride
        self.run(batch)
        return out

    def copy(self, source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
        """Make `target` what `source` is."""
        table, places = Table.of(source), Table.of(target)
        if table.copied or places.copied or not np.array_equal(table.codes, places.codes):
            copy_by_operators(source, target)
            return
        batch = table.batch(None)
        batch.old = places.places.data
        if self._library.torchvitals_copy(ctypes.byref(batch)):
            raise MemoryError("the copying kernel could not allocate its scratch space")

    def activity(self, activity: Sequence[Activity | None]) -> int:
        """Where the kernel's table of these counters is; the same list comes every step."""
        known = self._activities.get(id(activity))
        if known is None or known[0] is not activity:
            if len(self._activities) > MAX_ACTIVITIES:
                self._activities.clear()
            table = activity_table(activity)
            known = self._activities[id(activity)] = (activity, table, address(table))
        return known[2]

    def run(self, batch: Batch) -> bool:
        """One call of the kernel; whether all values are finite."""
        says = self._library.torchvitals_measure(ctypes.byref(batch))
        if says == NO_MEMORY:
            raise MemoryError("the statistics kernel could not allocate its scratch space")
        return bool(says == FINITE)


class Single:
    """Measures one tensor at a time with a struct that is kept: the way of large activations."""

    def __init__(self, backend: NativeBackend) -> None:
        self._backend = backend
        self._pointer = np.zeros(1, dtype=np.uint64)
        self._count = np.zeros(1, dtype=np.int64)
        self._code = np.zeros(1, dtype=np.uint8)
        self._batch = Batch(
            num=1,
            data=address(self._pointer),
            count=address(self._count),
            dtype=address(self._code),
            parallel=pool(),
        )

    def measure(
        self,
        tensor: Tensor,
        bins: Bins | None,
        ends: NDArray[np.float32] | None,
        activity: Sequence[Activity | None] | None,
        *,
        thin: bool,
        phase: int | None,
    ) -> Measured:
        """As `NativeBackend.measure`, for a tensor the kernel can read as it is."""
        self._pointer[0] = tensor.data_ptr()
        self._count[0] = tensor.numel()
        self._code[0] = CODES[tensor.dtype]
        (sums,), place = self._backend.pad.take(1, WIDTH)
        out = Measured(sums=sums)
        batch = self._batch
        batch.sums = place
        batch.threads = torch.get_num_threads()
        batch.stride, batch.bins, batch.thin = 1, None, thin
        batch.part, batch.phase = (0, 0) if phase is None else (PART_STRIDE, phase)
        if bins is not None:
            batch.stride, batch.bins = bins.stride, room(bins, 1)
        batch.ends = batch.active = None
        if ends is not None:
            out.outside = np.zeros(1)
            batch.ends, batch.outside = address(ends), address(out.outside)
        if activity is not None:
            batch.active = self._backend.activity(activity)
        out.finite = self._backend.run(batch)
        return out


def activity_table(activity: Sequence[Activity | None]) -> NDArray[np.void]:
    """The kernel's table of unit counters; lines without any have no units."""
    return np.array(
        [
            (0, 1, 1, 0, 0, 0.0)
            if a is None
            else (a.units, a.inner, a.step, a.counts.data_ptr(), a.totals_address, a.floor)
            for a in activity
        ],
        dtype=ACTIVITY,
    )


def add_zeros(out: Measured, bins: Bins | None, line: int, zeros: int, before: int) -> None:
    """Count the implicit zeros of a sparse tensor in; a sampled histogram takes its share."""
    sums = out.sums[line]
    stored = sums[s.COUNT]
    sums[s.COUNT] += zeros
    sums[s.ZEROS] += zeros
    sums[s.MIN], sums[s.MAX] = min(sums[s.MIN], 0.0), max(sums[s.MAX], 0.0)
    if bins is not None:
        seen = int(bins.counts[line].sum()) - before
        share = seen / stored if stored and seen else 1.0
        bins.counts[line, ZERO_BIN] += round(zeros * share)
