"""The kernels: each program reduces one block of one tensor, a second launch folds the blocks.

A launch covers a whole list of tensors: a table on the device says where each one is and with which
block it begins. Results are the same bits every time: float sums are written down block by block
and folded in a fixed order; only integer counts of the histograms are added up atomically.

Sums are kept in float64: squares of float32 leave float32's range. That is the slow kind of
arithmetic on most cards, but a few operations an element still hide behind reading it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torchvitals.record import bins as b
from torchvitals.stats import sums as s
from torchvitals.stats.backend import SMALL as WHOLE

BLOCK = 4096
"""Elements a program reduces."""
WIDTH = 16
"""Numbers written down a block: the nine sums, what lies beyond the ends, three dots."""
OUTSIDE, DOTS = 9, 10
ENTRY = 9
"""Numbers a tensor in the table."""
ROWS = 128
"""Blocks folded at a time."""

_BLOCK, _WIDTH, _ROWS = tl.constexpr(BLOCK), tl.constexpr(WIDTH), tl.constexpr(ROWS)
_ENTRY = tl.constexpr(ENTRY)
_SIZE, _FIRST, _LINE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_DATA, _OLD, _GRAD = tl.constexpr(3), tl.constexpr(5), tl.constexpr(7)
_SMALL, _GROUP = tl.constexpr(WHOLE), tl.constexpr(32)
_COUNT, _SUM, _SUMSQ = tl.constexpr(s.COUNT), tl.constexpr(s.SUM), tl.constexpr(s.SUMSQ)
_MIN, _MAX, _ZEROS = tl.constexpr(s.MIN), tl.constexpr(s.MAX), tl.constexpr(s.ZEROS)
_NAN, _POSINF, _NEGINF = tl.constexpr(s.NAN), tl.constexpr(s.POSINF), tl.constexpr(s.NEGINF)
_OUTSIDE, _DOTS = tl.constexpr(OUTSIDE), tl.constexpr(DOTS)
_NUM_BINS, _ZERO_BIN, _SIDE = (tl.constexpr(n) for n in (b.NUM_BINS, b.ZERO_BIN, b.SIDE))
_POWER = tl.constexpr(256)
"""Bins of the histogram operator, which wants a power of two; the last one is thrown away."""
_LOW32 = tl.constexpr(2 * (127 + b.MIN_EXPONENT) - 1)
_LOW64 = tl.constexpr(2 * (1023 + b.MIN_EXPONENT) - 1)
_INF = tl.constexpr(float("inf"))


@triton.jit
def load(entry, place, mask, WIDE: tl.constexpr):
    """Elements of a tensor as `WIDE`; `entry` points at its address and the code of its dtype."""
    address, code = tl.load(entry), tl.load(entry + 1)
    if code == 0:
        x = tl.load(address.to(tl.pointer_type(tl.float32)) + place, mask, 0.0).to(WIDE)
    elif code == 1:
        x = tl.load(address.to(tl.pointer_type(tl.float64)) + place, mask, 0.0).to(WIDE)
    elif code == 2:
        x = tl.load(address.to(tl.pointer_type(tl.float16)) + place, mask, 0.0).to(WIDE)
    else:
        x = tl.load(address.to(tl.pointer_type(tl.bfloat16)) + place, mask, 0.0).to(WIDE)
    return x


@triton.jit
def reduce(x, mask, row):
    """Write the nine sums of a block down."""
    finite = mask & (tl.abs(x) < _INF)
    kept = tl.where(finite, x, 0.0).to(tl.float64)
    tl.store(row + _COUNT, tl.sum(mask.to(tl.int32)).to(tl.float64))
    tl.store(row + _SUM, tl.sum(kept))
    tl.store(row + _SUMSQ, tl.sum(kept * kept))
    tl.store(row + _MIN, tl.min(tl.where(finite, x, _INF)).to(tl.float64))
    tl.store(row + _MAX, tl.max(tl.where(finite, x, -_INF)).to(tl.float64))
    tl.store(row + _ZEROS, tl.sum((mask & (x == 0)).to(tl.int32)).to(tl.float64))
    tl.store(row + _NAN, tl.sum((mask & (x != x)).to(tl.int32)).to(tl.float64))
    tl.store(row + _POSINF, tl.sum((mask & (x == _INF)).to(tl.int32)).to(tl.float64))
    tl.store(row + _NEGINF, tl.sum((mask & (x == -_INF)).to(tl.int32)).to(tl.float64))


@triton.jit
def count(x, mask, counts):
    """Add a block to a histogram. The bin is read off the exponent and the first mantissa bit."""
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        code = ((bits >> 51) & 0xFFF).to(tl.int32)
        side = code - _LOW64
        finite = code < 2 * 2047
    else:
        bits = x.to(tl.int32, bitcast=True)
        code = (bits >> 22) & 0x1FF
        side = code - _LOW32
        finite = code < 2 * 255
    side = tl.minimum(tl.maximum(side, 0), _SIDE - 1)
    index = tl.where(bits < 0, _ZERO_BIN - 1 - side, _ZERO_BIN + 1 + side)
    index = tl.where(x == 0, _ZERO_BIN, index)
    index = tl.where(mask & finite, index, _POWER - 1)
    found = tl.histogram(index, _POWER)
    bins = tl.arange(0, _POWER)
    tl.atomic_add(counts + bins, found, mask=(bins < _NUM_BINS) & (found > 0), sem="relaxed")


# Numbers are not specialized on: Triton would compile one kernel more for each kind of them.
@triton.jit(do_not_specialize=["num_blocks", "stride"])
def measure(
    table, entry_of, ends, partials, num_blocks, stride, bins, delta_bins, grad_bins,
    WIDE: tl.constexpr, ENDS: tl.constexpr, CHANGE: tl.constexpr, GRADS: tl.constexpr,
    BINS: tl.constexpr, DELTA_BINS: tl.constexpr, GRAD_BINS: tl.constexpr,
):  # fmt: skip
    """One block of one tensor: of its values, of its change and of its gradient."""
    block = tl.program_id(0).to(tl.int64)
    entry = table + tl.load(entry_of + block).to(tl.int64) * _ENTRY
    size, line = tl.load(entry + _SIZE), tl.load(entry + _LINE)
    place = (block - tl.load(entry + _FIRST)) * _BLOCK + tl.arange(0, _BLOCK)
    mask = place < size
    looked_at = mask & ((size <= _SMALL) | ((place // _GROUP) % stride == 0))
    row = partials + block * _WIDTH
    x = load(entry + _DATA, place, mask, WIDE)
    reduce(x, mask, row)
    if BINS:
        count(x, looked_at, bins + line * _NUM_BINS)
    if ENDS:
        low, high = tl.load(ends + 2 * line), tl.load(ends + 2 * line + 1)
        beyond = mask & ((x <= low) | (x >= high))
        tl.store(row + _OUTSIDE, tl.sum(beyond.to(tl.int32)).to(tl.float64))
    if CHANGE:
        change = row + num_blocks.to(tl.int64) * _WIDTH
        delta = x - load(entry + _OLD, place, mask, WIDE)
        reduce(delta, mask, change)
        if DELTA_BINS:
            count(delta, looked_at, delta_bins + line * _NUM_BINS)
        there = mask & (tl.load(entry + _GRAD) != 0)
        g = load(entry + _GRAD, place, there, WIDE)
        d64, g64 = tl.where(there, delta, 0.0).to(tl.float64), g.to(tl.float64)
        tl.store(change + _DOTS, tl.sum(d64 * g64))
        tl.store(change + _DOTS + 1, tl.sum(d64 * d64))
        tl.store(change + _DOTS + 2, tl.sum(g64 * g64))
        if GRADS:
            reduce(g, mask, change + num_blocks.to(tl.int64) * _WIDTH)
            if GRAD_BINS:
                count(g, looked_at, grad_bins + line * _NUM_BINS)


@triton.jit(do_not_specialize=["num_blocks", "num_lines"])
def fold(table, partials, out, num_blocks, num_lines):
    """Blocks of one tensor → its line."""
    entry, plane = table + tl.program_id(0) * _ENTRY, tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(tl.load(entry + _SIZE), _BLOCK)
    first = partials + (plane * num_blocks + tl.load(entry + _FIRST)) * _WIDTH
    columns = tl.arange(0, _WIDTH)
    total = tl.zeros((_WIDTH,), tl.float64)
    low, high = total + _INF, total - _INF
    for start in range(0, blocks, _ROWS):
        rows = (start + tl.arange(0, _ROWS))[:, None]
        mask = rows < blocks
        tile = tl.load(first + rows * _WIDTH + columns[None, :], mask, 0.0)
        total += tl.sum(tile, 0)
        low = tl.minimum(low, tl.min(tl.where(mask, tile, _INF), 0))
        high = tl.maximum(high, tl.max(tl.where(mask, tile, -_INF), 0))
    found = tl.where(columns == _MIN, low, tl.where(columns == _MAX, high, total))
    line = plane * num_lines + tl.load(entry + _LINE)
    tl.store(out + line * _WIDTH + columns, found)
