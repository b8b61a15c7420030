"""How many samples and tokens a batch holds, told from its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

TEXT_NAMES = ("input_ids", "tokens", "ids", "input_tokens")
"""Entries of a dict batch that hold token ids."""

MAX_DEPTH = 4


def size_of(batch: Any) -> tuple[int, int]:
    """(samples, tokens) of a batch, 0 where it can't be told.

    Samples are the leading dimension of the first array that has one; tokens the size of the first
    array, if it holds whole numbers in two dimensions (batch × time), as token ids do.
    """
    if isinstance(batch, Mapping):
        named = next((batch[name] for name in TEXT_NAMES if name in batch), None)
        if named is not None:
            batch = named
    first = next(arrays_in(batch), None)
    if first is None:
        return 0, 0
    samples = int(first.shape[0])
    whole = (
        not first.is_floating_point() and not first.is_complex() and first.dtype != torch.bool
        if isinstance(first, Tensor)
        else np.issubdtype(first.dtype, np.integer)
    )
    return samples, samples * int(first.shape[1]) if whole and len(first.shape) == 2 else 0


def arrays_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors and arrays with at least one dimension, in order."""
    if isinstance(value, Tensor | np.ndarray):
        if len(value.shape):
            yield value
    elif depth >= MAX_DEPTH:
        return
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from arrays_in(part, depth + 1)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for part in value[:8]:
            yield from arrays_in(part, depth + 1)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from arrays_in(getattr(value, name), depth + 1)
