"""Lists of tensors as the kernel wants them: where they lie, how many elements of which dtype.

Making such a table costs more than reading small tensors, so those of lists that come again are
kept (`FixedTensors`, `Layout`), and only the addresses asked for anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.record import UnsupportedTensor
from torchvitals.record.bins import NUM_BINS
from torchvitals.stats.backend import Bins
from torchvitals.stats.native.describe import Places, describe
from torchvitals.stats.native.library import Batch, pool
from torchvitals.stats.readable import readable

CODES = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
"""The kernel's numbers of dtypes."""

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
        # A copy of what can't be read as it is holds what was there when it was made.
        if table is None or table.copied or not (self._ours or table.take(self)):
            like = self._like
            table = self._table = Table(self) if like is None else like.table(self)
        return table

    @property
    def plain(self) -> bool:
        """Whether the kernel could read them as they were when the table was last asked for."""
        return self._table is not None and not self._table.copied

    @property
    def copied(self) -> bool:
        """Whether it could not: copies were read then."""
        return self._table is not None and self._table.copied

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
            batch.roll = batch.thin = batch.part = 0
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


def addresses_of(
    grads: Sequence[Tensor | None], table: Table
) -> tuple[NDArray[np.uint64], list[Tensor]]:
    """Addresses of the gradients, 0 where there is none like its weight; and what lies there.

    Dense ones in another order than a row's (channels last, transposed) are copied, as their
    weights are.
    """
    found = np.zeros(len(grads), dtype=np.uint64)
    read: list[Tensor] = []
    for line, grad in enumerate(grads):
        if grad is None or CODES.get(grad.dtype) != table.codes[line]:
            continue
        if grad.is_cpu and grad.layout is torch.strided:
            read.append(grad.contiguous())
            found[line] = read[-1].data_ptr()
    return found, read


def room(bins: Bins, num: int) -> int:
    """Where the counts of so many tensors are added up."""
    if bins.counts is None:
        bins.counts = np.zeros((num, NUM_BINS), dtype=np.uint32)
    if bins.placed is not bins.counts:  # made here, or by another backend before
        bins.placed, bins.place = bins.counts, address(bins.counts)
    return bins.place


def address(array: NDArray[Any]) -> int:
    """Where an array's values are; several times as fast as `array.ctypes.data`."""
    found: int = array.__array_interface__["data"][0]
    return found
