"""Scale gradients down in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchvitals.stats.shards import local


def scale_all(grads: Sequence[Tensor], factor: float) -> None:
    """All by the same factor."""
    scale_each(grads, [factor] * len(grads))


def scale_each(grads: Sequence[Tensor], factors: Sequence[float]) -> None:
    """Each by its own; those of factor 1 are left alone."""
    dense: list[Tensor] = []
    by: list[float] = []
    for grad, factor in zip(grads, factors, strict=True):
        if factor == 1.0:
            continue
        part = local(grad)
        if part.layout is torch.strided:
            dense.append(part)
            by.append(factor)
        else:
            part.mul_(factor)
    if dense:
        torch._foreach_mul_(dense, by)
