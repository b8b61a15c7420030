"""`TorchBackend`: the same sums with stock operators, on any device, without a host sync.

Tensors are joined into batches of sixteen million elements (65,536 on a CPU). A batch takes some
eighty operators whatever their number, a large tensor by itself about forty; memory: a few copies
of the batch. Nothing waits for the device. Sums agree with the C kernel to a few 1e-6 relative,
counts and histograms exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.record.bins import MIN_EXPONENT, NUM_BINS, SIDE, ZERO_BIN
from torchvitals.stats import sums as s
from torchvitals.stats.backend import (
    PART_FROM,
    PART_STRIDE,
    SMALL,
    Activity,
    Bins,
    Measured,
    copy_by_operators,
)
from torchvitals.stats.readable import readable

GROUP = 32
TOGETHER = 1 << 24
"""Elements of tensors that are measured in one batch."""
TOGETHER_ON_CPU = 1 << 16
"""There an operator is cheap, and a copy is not."""
_INF = float("inf")


class TorchBackend:
    """Stock PyTorch operators. Reads tensors anywhere, also several devices in one call."""

    name = "torch"

    def fixed(
        self, tensors: Iterable[Tensor], *, ours: bool = False, layout: object = None
    ) -> list[Tensor]:
        """The same list: there is nothing to prepare."""
        return list(tensors)

    def layout(self, _tensors: Sequence[Tensor]) -> None:
        """Nothing: there is nothing to prepare."""

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
            flat = [readable(tensor) for tensor in tensors]
            vectors, zeros = [x.view(-1) for x, _ in flat], [z for _, z in flat]
            if phase is not None and not any(zeros):
                vectors = [part(x, phase) for x in vectors]
            out = Measured(sums=sums_of(vectors, zeros))
            if bins is not None:
                counts = bins_of(vectors, bins.stride, zeros)
                bins.counts = counts if bins.counts is None else bins.counts + counts
            if ends is not None:
                out.outside = together(
                    [outside(x, *line) for x, line in zip(vectors, ends.tolist(), strict=True)]
                )
            for (x, _), counters in zip(flat, activity or (), strict=False):
                if counters is not None:
                    count_active(x, counters)
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
        """Sums of `new` and of `new − old`. With `roll`, `old` becomes `new`."""
        with torch.no_grad():
            deltas = [a.detach().to(wide(a)) - b.to(wide(a)) for a, b in zip(new, old, strict=True)]
            out = self.measure(new, bins=bins)
            out.delta_sums = self.measure(deltas, bins=delta_bins).sums
            out.dots = together([dots(d, g) for d, g in zip(deltas, grads, strict=True)])
            if with_grads:
                there = [grad for grad in grads if grad is not None]
                out.grad_sums = self.measure(there, bins=grad_bins).sums
            if roll:
                torch._foreach_copy_(list(old), [tensor.detach() for tensor in new])
        return out

    def copy(self, source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
        """Make `target` what `source` is."""
        copy_by_operators(source, target)


def wide(x: Tensor) -> torch.dtype:
    """The dtype differences are taken in: float32, or float64 where the tensor is."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def precise(x: Tensor) -> torch.dtype:
    """The dtype sums are kept in: float64 except on devices that lack it."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def together(rows: list[Tensor]) -> Tensor:
    """One tensor of all rows, on the first one's device."""
    if not rows:
        return torch.zeros(0, NUM_BINS)
    device = rows[0].device
    return torch.stack([row.to(device, non_blocking=True) for row in rows])


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A small table on the device; from pinned memory, so that nobody waits."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def batches(flat: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype and device, as many as are measured together."""
    batch: list[Tensor] = []
    size = 0
    for x in flat:
        alike = batch and (x.dtype, x.device) == (batch[0].dtype, batch[0].device)
        limit = TOGETHER_ON_CPU if x.is_cpu else TOGETHER
        if batch and (not alike or size + x.numel() > limit):
            yield batch
            batch, size = [], 0
        batch.append(x)
        size += x.numel()
    if batch:
        yield batch


def joined(batch: list[Tensor]) -> Tensor:
    """One tensor of all elements, in float32 or float64."""
    x = batch[0] if len(batch) == 1 else torch.cat(batch)
    return x if x.dtype is torch.float64 else x.float()


def sums_of(flat: list[Tensor], zeros: list[int]) -> Tensor:
    """(n, 9) sums of flat tensors; `zeros` more zeros belong to each (sparse tensors)."""
    found = [_rows(batch) for batch in batches(flat)]
    if not found:
        return torch.zeros(0, len(s.FIELDS))
    device = found[0].device
    rows = torch.cat([part.to(device, non_blocking=True) for part in found])
    for line, more in enumerate(zeros):
        if more:
            row = rows[line]
            row[s.COUNT] += more
            row[s.ZEROS] += more
            row[s.MIN].clamp_(max=0.0)
            row[s.MAX].clamp_(min=0.0)
    return rows


def _row(x: Tensor) -> Tensor:
    """A tensor by itself needs no masks that are summed."""
    dtype = precise(x)
    finite = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    counts = [(x == 0).sum(), x.isnan().sum(), (x == _INF).sum(), (x == -_INF).sum()]
    (norm,) = torch._foreach_norm([finite], 2, dtype=dtype)
    ends = [
        torch.nan_to_num(x, nan=_INF, posinf=_INF, neginf=_INF).amin(),
        torch.nan_to_num(x, nan=-_INF, posinf=-_INF, neginf=-_INF).amax(),
    ]
    return torch.cat(
        [
            torch.full((1,), x.numel(), dtype=dtype, device=x.device),
            torch.stack([finite.sum(dtype=dtype), norm.square()]),
            torch.stack(ends).to(dtype),
            torch.stack(counts).to(dtype),
        ]
    )


def _rows(batch: list[Tensor]) -> Tensor:
    """Each step is one operator for the whole batch: operators a batch, not operators a tensor."""
    if len(batch) == 1 and batch[0].numel():
        return _row(joined(batch))[None]
    sizes = [x.numel() for x in batch]
    x = joined(batch)
    dtype = precise(x)
    there = [k for k, size in enumerate(sizes) if size]

    def each(values: Tensor, order: float | None, nothing: float = 0.0) -> Tensor:
        """Norm or (None) maximum of each tensor's part; `nothing` where it is empty."""
        # An empty tensor in the list would send a foreach call down its slow path.
        parts = [part for part in torch.split(values, sizes) if part.numel()]
        if not parts:
            return torch.full((len(sizes),), nothing, dtype=dtype, device=x.device)
        found: Sequence[Tensor] = (
            torch._foreach_max(parts)
            if order is None
            else torch._foreach_norm(parts, order, dtype=dtype)
        )
        if len(there) < len(sizes):
            filled = [torch.full((), nothing, dtype=found[0].dtype, device=x.device)] * len(sizes)
            for k, one in zip(there, found, strict=True):
                filled[k] = one
            found = filled
        return torch.stack(list(found)).to(dtype)

    def how_many(mask: Tensor) -> Tensor:
        return each(mask.to(x.dtype), 1)

    finite = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
    low = torch.nan_to_num(x.neg(), nan=-_INF, posinf=-_INF, neginf=-_INF)
    high = torch.nan_to_num(x, nan=-_INF, posinf=-_INF, neginf=-_INF)
    columns = [
        sent(torch.tensor(sizes, dtype=dtype), x.device),
        # There is no foreach sum; both halves are summed in `dtype`.
        each(finite.clamp(min=0.0), 1) - each(finite.clamp(max=0.0), 1),
        each(finite, 2).square(),
        -each(low, None, -_INF),
        each(high, None, -_INF),
        how_many(x == 0),
        how_many(x.isnan()),
        how_many(x == _INF),
        how_many(x == -_INF),
    ]
    return torch.stack(columns, dim=1)


def bins_of(flat: list[Tensor], stride: int, zeros: list[int]) -> Tensor:
    """(n, NUM_BINS) counts of the samples the C kernel would take."""
    samples = [sample(x, stride) for x in flat]
    found = [_counts(batch) for batch in batches(samples)]
    if not found:
        return torch.zeros(0, NUM_BINS, dtype=torch.int64)
    device = found[0].device
    counts = torch.cat([part.to(device, non_blocking=True) for part in found])
    for line, more in enumerate(zeros):
        if more:
            all_, seen = flat[line].numel(), samples[line].numel()
            counts[line, ZERO_BIN] += round(more * (seen / all_ if all_ else 1.0))
    return counts


def _counts(batch: list[Tensor]) -> Tensor:
    x = joined(batch)
    double = x.dtype is torch.float64
    bits = x.view(torch.int64 if double else torch.int32)
    code = (bits >> 51) & 0xFFF if double else (bits >> 22) & 0x1FF
    bias, top = (1023, 2 * 2047) if double else (127, 2 * 255)
    side = (code - (2 * (bias + MIN_EXPONENT) - 1)).clamp(0, SIDE - 1)
    index = torch.where(bits < 0, ZERO_BIN - 1 - side, ZERO_BIN + 1 + side)
    index = torch.where(x == 0, ZERO_BIN, index)
    index = torch.where(code >= top, NUM_BINS, index).long()  # non-finite: a bin that is cut off
    num, width = len(batch), NUM_BINS + 1
    if num > 1:
        parts = torch.split(index, [one.numel() for one in batch])
        torch._foreach_add_(list(parts), [line * width for line in range(num)])
    counts = torch.zeros(num * width, dtype=torch.int64, device=x.device)
    counts.index_put_((index,), torch.ones_like(index), accumulate=True)
    return counts.view(num, width)[:, :NUM_BINS]


def sample(x: Tensor, stride: int, phase: int = 0) -> Tensor:
    """One group of 32 neighbours in `stride`, from group `phase` on; small tensors whole."""
    if stride == 1 or x.numel() <= SMALL:
        return x
    whole = x.numel() // GROUP
    groups = x[: whole * GROUP].view(whole, GROUP)[phase::stride].reshape(-1)
    if x.numel() % GROUP and whole % stride == phase:
        return torch.cat([groups, x[whole * GROUP :]])
    return groups


def part(x: Tensor, phase: int) -> Tensor:
    """What a measurement with a phase reads of a tensor."""
    return x if x.numel() < PART_FROM else sample(x, PART_STRIDE, phase)


def outside(x: Tensor, low: float, high: float) -> Tensor:
    """How many elements lie at or beyond the ends."""
    if low == -_INF:
        return torch.zeros((), dtype=precise(x), device=x.device)
    return ((x <= low) | (x >= high)).sum().to(precise(x))


def count_active(x: Tensor, a: Activity) -> None:
    """Add to each unit's counter the rows looked at in which |x| > floor."""
    rows = x.reshape(-1, a.units, a.inner).movedim(1, 2).reshape(-1, a.units)[:: a.step]
    sizes = rows.abs()
    a.counts += (sizes > a.floor).sum(0)
    if a.totals is not None:
        a.totals += sizes.sum(0, dtype=torch.float32)


def dots(delta: Tensor, grad: Tensor | None) -> Tensor:
    """Σ Δ·g, Σ Δ², Σ g²; zeros where there is no dense gradient."""
    dtype = precise(delta)
    if grad is None or grad.layout is not torch.strided:
        return torch.zeros(3, dtype=dtype, device=delta.device)
    d, g = delta.reshape(-1).to(dtype), grad.detach().reshape(-1).to(dtype)
    return torch.stack([torch.dot(a, b) for a, b in ((d, g), (d, d), (g, g))])
