"""`attention_stats`: entropy and largest logit of each attention head, in little memory.

    z = scale · q·kᵀ + mask        p = softmax(z) over the keys
    entropy of a query = −Σ p ln p = ln Σ e^(z−m) − Σ e^(z−m)·(z−m) / Σ e^(z−m),  m = max z

in nats: 0 for a query that looks at one key, ln S for one that looks at S keys alike. p is that
before dropout. The second form needs no logarithm of p, and its sums can be taken over keys in
parts.

Cost: one product of the queries looked at with the keys, and five passes over blocks of logits.
Temporaries hold at most `limit_elements` elements in all (one query, one key and their logit at the
least). No random numbers, no autograd graph, nothing waits for the device, and
inputs stay as they are. Arithmetic is float32 (float64 for float64 inputs), also under autocast;
sums over queries are float64 where the device has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import torch
from torch import Tensor

from torchvitals.record import ConfigError

LIMIT_ELEMENTS = 1 << 22
"""Temporaries of 16 MB: much smaller ones cost time, larger ones save none."""
MIN_QUERIES = 16
"""Queries of each sequence a budget leaves at least."""
ONE_HOT = 0.95
"""A query is nearly one-hot when one key has this share of its attention."""

CAUSAL_QUERIES = 64
"""Queries of a causal block at least."""

_FLOOR = {torch.float32: -87.0, torch.float64: -700.0}
"""e to these is as good as 0, and a normal number still: others are slow, −inf · 0 is NaN."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionStats:
    """Sums over batch and queries, one element a query head, on the inputs' device.

    A query without a distribution is left out of all of them: one whose keys are all masked, and
    one with a NaN or +Inf among its logits.
    """

    entropy_sum: Tensor
    num_rows: Tensor
    """Queries in the sums."""
    num_one_hot: Tensor
    """Queries with at least `ONE_HOT` of their attention on one key."""
    max_logit: Tensor
    """After scale and mask, before the softmax; −inf if there is none."""
    queries: range
    """Which queries of each sequence were looked at."""
    rows: Tensor | None = None
    """(batch…, heads, len(queries)) entropies, NaN for queries left out; only if asked for."""

    @property
    def entropy(self) -> Tensor:
        """Mean entropy in nats; NaN where no query had a distribution."""
        return self.entropy_sum / self.num_rows

    @property
    def one_hot_frac(self) -> Tensor:
        """Share of the queries that are nearly one-hot."""
        return self.num_one_hot / self.num_rows


def attention_stats(
    query: Tensor,
    key: Tensor,
    *,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    num_heads: int | None = None,
    limit_elements: int = LIMIT_ELEMENTS,
    max_queries: int | None = None,
    budget: int | None = None,
    keep_rows: bool = False,
) -> AttentionStats:
    """What the heads of one `scaled_dot_product_attention(query, key, …)` attend to.

    Args:
        query: (batch…, heads, L, E). Three dimensions are (heads, L, E), two a single head.
        key: (batch…, heads or groups of heads, S, E).
        attn_mask: broadcasts to (batch…, heads, L, S); bool (True takes part) or added to z.
        is_causal: query i sees keys up to i, counted from the upper left as torch does.
        scale: 1/√E if None.
        enable_gqa: a key head serves a group of neighbouring query heads.
        num_heads: three dimensions are (batch · heads, L, E), heads running fastest.
        limit_elements: of all temporaries together.
        max_queries: look at no more than so many evenly spaced queries of each sequence.
        budget: choose `max_queries` so that no more than so many logits are computed in all,
            but at least 16 queries a sequence.
        keep_rows: give the entropy of each query too.
    """
    for name, value in {
        "limit_elements": limit_elements, "max_queries": max_queries, "budget": budget,
    }.items():  # fmt: skip
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    device = query.device
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        q, k, mask = _laid_out(query.detach(), key.detach(), attn_mask, enable_gqa, num_heads)
        *batch, heads, length, width = q.shape
        queries = _chosen(length, max_queries, budget, prod(batch) * heads * k.shape[-2])
        exact = torch.float32 if device.type == "mps" else torch.float64
        sums = torch.zeros((heads, 3), dtype=exact, device=device)
        top = torch.full((heads,), -torch.inf, dtype=exact, device=device)
        rows = None
        if keep_rows:
            dtype = torch.promote_types(q.dtype, torch.float32)
            rows = torch.full((*batch, heads, len(queries)), torch.nan, dtype=dtype, device=device)
        scan = _Scan(
            scale=max(width, 1) ** -0.5 if scale is None else float(scale),
            causal=is_causal,
            queries=queries,
            limit=limit_elements,
        )
        for index in product(*map(range, batch[:-1])):
            for block in scan.blocks(q[index], k[index], _at(mask, index)):
                # Neither a row of masked keys (−inf) nor one with NaN or +Inf has a distribution.
                there, lines = block.top.abs() < torch.inf, block.place[1]
                entropy = torch.where(there, block.entropy, 0.0)
                told = torch.stack([entropy, there, there & (block.weight <= 1 / ONE_HOT)], dim=-1)
                sums[lines] += told.sum(dim=(0, 2), dtype=exact)
                highest = torch.where(there, block.top, -torch.inf).amax(dim=(0, 2)).to(exact)
                top[lines] = torch.maximum(top[lines], highest)
                if rows is not None:
                    rows[index][block.place] = torch.where(there, entropy, torch.nan)
    if rows is not None and num_heads is None and query.dim() < 4 and batch == [1]:
        rows = rows[0]
    return AttentionStats(sums[:, 0], sums[:, 1], sums[:, 2], top, queries, rows)


def _laid_out(
    query: Tensor, key: Tensor, mask: Tensor | None, enable_gqa: bool, num_heads: int | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Query and key with at least one batch dimension, equal ones; the mask with as many."""
    if min(query.dim(), key.dim()) < 2 or query.shape[-1] != key.shape[-1]:
        raise ConfigError(
            "query and key must be (batch…, heads, length, width) of the same width, got "
            f"{tuple(query.shape)} and {tuple(key.shape)}"
        )
    if num_heads is not None:
        batch = query.shape[-3] // num_heads
        query, key = torch.unflatten(query, -3, (batch, -1)), torch.unflatten(key, -3, (batch, -1))
        if mask is not None and mask.dim() > 2:
            mask = (
                mask.unsqueeze(-3)
                if mask.shape[-3] == 1
                else torch.unflatten(mask, -3, (batch, -1))
            )
    query, key = (x[(None,) * max(0, 4 - x.dim())] for x in (query, key))
    batches = [query.shape[:-3], key.shape[:-3], () if mask is None else mask.shape[:-3]]
    shape = np.broadcast_shapes(*batches)
    heads, groups = query.shape[-3], key.shape[-3]
    if heads == 1:
        heads = groups
    if heads % groups or (groups not in {1, heads} and not enable_gqa):
        raise ConfigError(
            f"{heads} query heads do not go with {groups} key heads"
            + ("" if enable_gqa else "; fewer key heads need enable_gqa=True")
        )
    query = query.expand(*shape, heads, *query.shape[-2:])
    key = key.expand(*shape, *key.shape[-3:])
    if mask is not None:
        mask = mask[(None,) * (query.dim() - mask.dim())]
    return query, key, mask


def _chosen(length: int, most: int | None, budget: int | None, logits: int) -> range:
    """Every n-th query, from the middle of the first n: under a causal mask the mean stays true."""
    if budget is not None:
        affordable = max(MIN_QUERIES, budget // max(logits, 1))
        most = affordable if most is None else min(most, affordable)
    step = 1 if most is None else max(1, -(-length // most))
    return range((step - 1) // 2, length, step)


def _at(mask: Tensor | None, index: tuple[int, ...]) -> Tensor | None:
    """The mask of one place in the batch."""
    if mask is None:
        return None
    return mask[tuple(0 if size == 1 else i for i, size in zip(index, mask.shape, strict=False))]


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """(batch, heads, queries) of some of the rows."""

    place: tuple[slice, slice, slice]
    """In the batch, among the query heads and among the queries looked at."""
    entropy: Tensor
    top: Tensor
    """m, the largest logit."""
    weight: Tensor
    """Σ e^(z−m)."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """Walks through all logits, block by block."""

    scale: float
    causal: bool
    queries: range
    limit: int

    def blocks(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Iterator[_Block]:
        """Of (batch, heads, L, E), (batch, groups, S, E) and a mask that broadcasts."""
        groups, num = key.shape[1], len(self.queries)
        chosen = slice(self.queries.start, None, self.queries.step)
        query = torch.unflatten(query, 1, (groups, -1))[:, :, :, chosen]
        if mask is not None:
            alike = mask.shape[1] == 1
            mask = mask.unsqueeze(2) if alike else torch.unflatten(mask, 1, (groups, -1))
            mask = mask if mask.shape[3] == 1 else mask[:, :, :, chosen]
        many, heads, length, keys = self._size(query, key)
        size = query.shape[2]
        for n in _slices(query.shape[0], many):
            for h in _slices(groups, heads):
                for rows in _slices(num, length):
                    place = (n, slice(h.start * size, h.stop * size), rows)
                    part = query[n, h, :, rows]
                    masked = None if mask is None else _sliced(mask, n, h, slice(None), rows)
                    found = self._block(part, key[n, h], masked, rows, keys)
                    yield _Block(place, *(x.flatten(1, 2) for x in found))

    def _size(self, query: Tensor, key: Tensor) -> tuple[int, int, int, int]:
        """Batch entries, groups of heads, queries and keys of a block that keeps to the limit.

        It holds the logits twice, and the block's queries and keys as float32 copies.
        """
        batch, groups, size, num, width = query.shape
        keys = min(key.shape[2], (self.limit - size * width) // (width + 2 * size))
        keys = max(keys, 1)
        length = min(num, (self.limit - keys * width) // (size * (2 * keys + width)))
        length = max(length, 1)
        if self.causal:
            # In short blocks of queries more keys lie behind the last one and need no look.
            length = min(length, max(CAUSAL_QUERIES, -(-num // 8)))
        pairs = self.limit // (2 * size * length * keys + (keys + size * length) * width)
        return max(1, min(batch, pairs // groups)), max(1, min(groups, pairs)), length, keys

    def _block(
        self, query: Tensor, key: Tensor, mask: Tensor | None, rows: slice, keys: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(batch, groups, heads a group, queries) of one block, over its keys part by part."""
        dtype = torch.promote_types(query.dtype, torch.float32)
        floor, num = _FLOOR[dtype], key.shape[2]
        places = self.queries[rows]
        if self.causal and places:
            num = min(num, places[-1] + 1)  # nobody looks at the keys behind
        shape, device = query.shape[:-1], query.device
        scaled = (query.to(dtype) * self.scale).flatten(2, 3)
        top: Tensor | None = None
        for s in _slices(num, keys):
            z = torch.unflatten(scaled @ key[:, :, s].to(dtype).transpose(-1, -2), 2, shape[2:])
            if self.causal and s.stop - 1 > places[0]:
                own = torch.arange(places.start, places.stop, places.step, device=device)
                start = max(s.start, places[0] + 1)
                ahead = torch.arange(start, s.stop, device=device) > own[:, None]
                z[..., start - s.start :].masked_fill_(ahead, -torch.inf)
            if mask is not None:
                part = _sliced(mask, *(slice(None),) * 4, s)
                z = z.masked_fill_(~part, -torch.inf) if part.dtype is torch.bool else z.add_(part)
            before, top = top, z.amax(dim=-1)
            if before is not None:
                top = torch.maximum(before, top)
            # −inf − −inf would be NaN where all keys so far are masked.
            base = top.clamp(min=torch.finfo(dtype).min)
            z.sub_(base[..., None]).clamp_(min=floor)
            e = z.exp()
            more, more_moment = e.sum(dim=-1), e.mul_(z).sum(dim=-1)
            if before is None:
                weight, moment = more, more_moment
            else:
                shift = (before - base).clamp_(min=floor)
                faded = shift.exp()
                moment = faded * (moment + shift * weight) + more_moment
                weight = faded * weight + more
        if top is None:
            top = torch.full(shape, -torch.inf, dtype=dtype, device=device)
            weight = moment = torch.zeros_like(top)
        return (weight.log() - moment / weight).clamp_(min=0.0), top, weight


def _slices(total: int, size: int) -> Iterator[slice]:
    """Cuts `total` into pieces of `size`."""
    return (slice(i, min(i + size, total)) for i in range(0, total, size))


def _sliced(mask: Tensor, *slices: slice) -> Tensor:
    """The slices of a mask; where it has size 1 it is the same for all."""
    chosen = (slice(None) if size == 1 else s for size, s in zip(mask.shape, slices, strict=False))
    return mask[tuple(chosen)]
