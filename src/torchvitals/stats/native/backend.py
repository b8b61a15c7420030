"""`NativeBackend`: CPU tensors through the C kernel. One call measures the whole list.

Cost: one read of the data with all of torch's threads, about a microsecond of Python a tensor.
The GIL is released meanwhile (ctypes does that).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.record import UnsupportedTensor, VitalsError
from torchvitals.record.bins import NUM_BINS, ZERO_BIN
from torchvitals.stats import sums as s
from torchvitals.stats.backend import Activity, Bins, Measured, copy_by_operators
from torchvitals.stats.native.describe import Places, describe
from torchvitals.stats.native.library import ACTIVITY, Batch, kernel, pool
from torchvitals.stats.readable import readable

CODES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}


MAX_ACTIVITIES = 256
WIDTH = len(s.FIELDS)
NUM_DOTS = 3
SHEET = 1 << 17
"""Numbers on a sheet for results, 1 MB: those of 32 steps of a small model."""
TOGETHER = 32
MAX_SIZES = 256

_data_ptr, _numel, _is_contiguous = Tensor.data_ptr, Tensor.numel, Tensor.is_contiguous
_dtype, _layout, _is_cpu = attrgetter("dtype"), attrgetter("layout"), attrgetter("is_cpu")


def all_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernel can read all of them as they are."""
    return (
        CODES.keys() >= set(map(_dtype, tensors))
        and {torch.strided} >= set(map(_layout, tensors))
        and all(map(_is_cpu, tensors))
        and all(map(_is_contiguous, tensors))
    )


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
    ) -> Measured:
        """Sums of each tensor; `bins` are added to."""
        if len(tensors) == 1 and all_plain(tensors):
            return self._single.measure(tensors[0], bins, ends, activity, thin=thin)
        table = Table.of(tensors) if layout is None else layout.table(tensors)
        (sums,), place = self.pad.take(table.num, WIDTH)
        out = Measured(sums=sums)
        batch = table.batch(bins)
        batch.sums, batch.thin = place, thin
        if ends is not None:
            ends = np.ascontiguousarray(ends, dtype=np.float32)
            out.outside = np.zeros(len(tensors))
            batch.ends, batch.outside = address(ends), address(out.outside)
        if activity is not None:
            batch.active = self.activity(activity)
        seen = [0 if bins is None else int(bins.counts[line].sum()) for line, _ in table.zeros]
        self.run(batch)
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
            directions = addresses_of(grads, table)
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

    def run(self, batch: Batch) -> None:
        """One call of the kernel."""
        if self._library.torchvitals_measure(ctypes.byref(batch)):
            raise MemoryError("the statistics kernel could not allocate its scratch space")


class Cut(NamedTuple):
    """Tables for the results of one call, one after the other."""

    tables: list[NDArray[np.float64]]
    place: int
    """Where the first one is."""


class Pad:
    """Tables for results, made many at a time: cutting one while training waits costs more."""

    def __init__(self) -> None:
        self._ready: dict[tuple[int, ...], list[Cut]] = {}
        self._made: dict[tuple[int, ...], int] = {}

    def take(self, num: int, *widths: int) -> Cut:
        """Tables of `num` lines and these widths."""
        kind = (num, *widths)
        ready = self._ready.get(kind)
        if not ready:
            ready = self._more(kind)
        return ready.pop()

    def _more(self, kind: tuple[int, ...]) -> list[Cut]:
        """Twice as many as the last time: tables of sizes that come once are few."""
        if len(self._made) > MAX_SIZES:
            self._ready.clear()
            self._made.clear()
        num, *widths = kind
        size = num * sum(widths)
        most = max(SHEET // max(size, 1), 1)
        made = self._made[kind] = min(2 * self._made.get(kind, 0) or 1, most, TOGETHER)
        sheet = np.empty((made, size))
        place, ends = address(sheet), np.cumsum([num * width for width in widths])
        ready = self._ready[kind] = [
            Cut(
                [
                    part.reshape(num, width)
                    for part, width in zip(np.split(row, ends[:-1]), widths, strict=True)
                ],
                place + line * row.nbytes,
            )
            for line, row in enumerate(sheet)
        ]
        return ready


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
        if bins is not None:
            batch.stride, batch.bins = bins.stride, room(bins, 1)
        batch.ends = batch.active = None
        if ends is not None:
            out.outside = np.zeros(1)
            batch.ends, batch.outside = address(ends), address(out.outside)
        if activity is not None:
            batch.active = self._backend.activity(activity)
        self._backend.run(batch)
        return out


def address(array: NDArray[Any]) -> int:
    """Where an array's values are; several times as fast as `array.ctypes.data`."""
    found: int = array.__array_interface__["data"][0]
    return found


def room(bins: Bins, num: int) -> int:
    """Where the counts of so many tensors are added up."""
    if bins.counts is None:
        bins.counts = np.zeros((num, NUM_BINS), dtype=np.uint32)
    if bins.placed is not bins.counts:  # made here, or by another backend before
        bins.placed, bins.place = bins.counts, address(bins.counts)
    return bins.place


class FixedTensors(list[Tensor]):
    """A list of tensors that stays the same from step to step: its table is made once.

    Only the addresses are asked for again; tensors that are not what they were have the table made
    anew. Buffers that are `ours` never move. `like`: the layout of an earlier list of the same
    sizes.
    """

    def __init__(
        self, tensors: Iterable[Tensor], *, ours: bool = False, like: Layout | None = None
    ) -> None:
        super().__init__(tensors)
        self._ours = ours
        self._like = like
        self._table: Table | None = None

    def table(self) -> Table:
        """The table of the tensors where they are now."""
        table = self._table
        if table is None or not (self._ours or table.take(self)):
            like = self._like
            table = self._table = Table(self) if like is None else like.table(self)
        return table

    @property
    def plain(self) -> bool:
        """Whether the kernel could read them as they were when the table was last asked for."""
        return self._table is not None and not self._table.copied

    @property
    def addresses(self) -> bytes:
        """Where they were then."""
        return b"" if self._table is None else self._table.pointers.tobytes()


class Table:
    """Addresses, sizes and dtypes of a list of tensors, as the kernel wants them."""

    __slots__ = (
        "_batch",
        "codes",
        "copied",
        "counts",
        "num",
        "places",
        "pointers",
        "shapes",
        "tensors",
        "zeros",
    )

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        num = self.num = len(tensors)
        self.pointers = np.empty(num, dtype=np.uint64)
        self.counts = np.empty(num, dtype=np.int64)
        self.codes = np.empty(num, dtype=np.uint8)
        self.shapes = np.empty(num, dtype=np.uint64)
        self.places = Places(
            address(self.pointers), address(self.counts), address(self.codes), address(self.shapes)
        )
        self._batch: Batch | None = None
        self.tensors: Sequence[Tensor] = tensors
        """Those that are read: copies, where the tensors can't be read as they are."""
        self.zeros: list[tuple[int, int]] = []
        self.copied = False
        if not describe(tensors, self.places):
            self._ask_each()

    def _ask_each(self) -> None:
        """As `describe`, where torch can't be asked at once or a tensor can't be read."""
        self.copied = not all_plain(self.tensors)
        if self.copied:
            self._make_readable()
        self.pointers[:] = list(map(_data_ptr, self.tensors))
        self.counts[:] = list(map(_numel, self.tensors))
        self.codes[:] = list(map(CODES.__getitem__, map(_dtype, self.tensors)))
        self.shapes[:] = [hash(tuple(tensor.shape)) % (1 << 64) for tensor in self.tensors]
        if (self.counts[self.pointers == 0] > 0).any():
            raise UnsupportedTensor("a tensor whose memory was given back has no values to measure")

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Table:
        """The table of any list; a fixed one has it ready."""
        return tensors.table() if isinstance(tensors, FixedTensors) else cls(tensors)

    @property
    def _layout(self) -> tuple[NDArray[Any], ...]:
        return self.counts, self.codes, self.shapes

    def like(self, other: Table) -> bool:
        """Whether both are read as they are, with the same dtypes."""
        return not self.copied and self.codes.tobytes() == other.codes.tobytes()

    def take(self, tensors: Sequence[Tensor]) -> bool:
        """Become the table of these tensors; False if they are not of the same sizes and dtypes."""
        if self.copied or len(tensors) != self.num:
            return False
        if describe(tensors, self.places, known=True):
            return True
        other = Table(tensors)
        same = map(np.array_equal, self._layout, other._layout)
        if other.copied or not all(same):
            return False
        self.pointers[:] = other.pointers
        return True

    def _make_readable(self) -> None:
        found = []
        for line, tensor in enumerate(self.tensors):
            if not tensor.is_cpu and not tensor.is_meta:
                raise UnsupportedTensor(
                    f"the C kernel reads CPU tensors only, this one is on {tensor.device}; "
                    "use backend='auto' or 'torch'"
                )
            read, zeros = readable(tensor)
            found.append(read)
            if zeros:
                self.zeros.append((line, zeros))
        self.tensors = found

    def batch(self, bins: Bins | None) -> Batch:
        """The kernel's struct, made once; the caller adds where results go."""
        batch = self._batch
        if batch is None:
            data, sizes, dtypes, _ = self.places
            batch = self._batch = Batch(
                num=self.num, data=data, count=sizes, dtype=dtypes, parallel=pool()
            )
        else:
            batch.old = batch.grad = batch.ends = batch.active = None
            batch.delta_bins = batch.grad_sums = batch.grad_bins = None
            batch.roll = batch.thin = 0
        batch.threads = torch.get_num_threads()
        batch.stride = 1 if bins is None else bins.stride
        batch.bins = None if bins is None else room(bins, self.num)
        return batch


class Layout:
    """The table of tensors that are others each time, of the same sizes and dtypes.

    Outputs of layers are such: only their addresses are written anew.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._table = Table(tensors)
        self._table.tensors = ()  # they are not ours to keep alive
        self._taken: Sequence[Tensor] | None = None

    def fits(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these have the same shapes; they are to be measured next if so."""
        self._taken = tensors if self._table.take(tensors) else None
        return self._taken is not None

    def table(self, tensors: Sequence[Tensor]) -> Table:
        """The table of these tensors: this one with their addresses, or one of their own."""
        taken, self._taken = self._taken, None
        return self._table if taken is tensors or self._table.take(tensors) else Table(tensors)


def on_cpu(tensors: Sequence[Tensor]) -> bool:
    """Whether all are on the CPU. A fixed list that has a table was asked before."""
    fixed = isinstance(tensors, FixedTensors) and tensors.plain
    return fixed or all(map(_is_cpu, tensors))


def addresses_of(grads: Sequence[Tensor | None], table: Table) -> NDArray[np.uint64]:
    """Addresses of the gradients that are laid out like their weights; 0 for the others."""
    found = np.zeros(len(grads), dtype=np.uint64)
    for line, grad in enumerate(grads):
        if grad is not None and all_plain([grad]) and CODES[grad.dtype] == table.codes[line]:
            found[line] = grad.data_ptr()
    return found


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
