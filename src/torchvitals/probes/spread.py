"""Small evenly spaced samples of large tensors, taken without reading the rest of them."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor


@lru_cache(maxsize=512)
def slices(sizes: tuple[int, ...], limit: int) -> tuple[slice, ...]:
    """Steps through each dimension that leave at most `limit` elements; odd ones.

    An even step may meet the same column of every row.
    """
    steps = [1] * len(sizes)
    left = list(sizes)
    while prod(left) > limit:
        widest = left.index(max(left))
        steps[widest] = 2 * steps[widest] + 1
        left[widest] = -(-sizes[widest] // steps[widest])
    return tuple(slice(None, None, step) for step in steps)


def sample(x: Tensor, limit: int) -> Tensor:
    """A copy of at most `limit` elements, where the tensor is."""
    x = x.detach()
    if x.numel() > limit:
        x = x[slices(tuple(x.shape), limit)]
    return x.clone(memory_format=torch.contiguous_format)


def sample_rows(x: Tensor, rows: int, elements: int) -> Tensor:
    """A copy of at most `rows` entries of the first dimension, `elements` of each."""
    x, shape = x.detach(), x.shape
    if shape[0] > rows:
        x = x[slices(tuple(shape[:1]), rows)]
    if x.numel() > x.shape[0] * elements:
        x = x[(slice(None), *slices(tuple(shape[1:]), elements))]
    return x.clone(memory_format=torch.contiguous_format)
