"""Statistics by name: `stats.norm`, `stats.rms` … as functions of a tensor.

Handed to `add_gradient_metric("norm", stats.norm)` they are recognised, and all tensors are
measured together in the kernel's one pass; called on a tensor they compute the same with torch.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchvitals.stats import sums as s
from torchvitals.stats.backend import Backend


def _wide(x: Tensor) -> Tensor:
    x = x.detach()
    x = x.abs() if x.is_complex() else x
    return x if x.dtype is torch.float64 else x.float()


def norm(x: Tensor) -> Tensor:
    """√Σx²."""
    found: Tensor = torch.linalg.vector_norm(_wide(x))
    return found


def rms(x: Tensor) -> Tensor:
    """√(Σx² / n)."""
    return _wide(x).square().mean().sqrt()


def mean(x: Tensor) -> Tensor:
    """Σx / n."""
    return _wide(x).mean()


def std(x: Tensor) -> Tensor:
    """√(rms² − mean²): divides by n."""
    return _wide(x).std(correction=0)


def min(x: Tensor) -> Tensor:  # the name of the statistic
    """The smallest element."""
    return _wide(x).min()


def max(x: Tensor) -> Tensor:
    """The largest element."""
    return _wide(x).max()


def absmax(x: Tensor) -> Tensor:
    """The largest magnitude."""
    return _wide(x).abs().max()


def zero_frac(x: Tensor) -> Tensor:
    """Share of elements that are zero."""
    return (_wide(x) == 0).float().mean()


PLACES: dict[Callable[..., object], int] = {
    function: s.STATS.index(function.__name__)
    for function in (norm, rms, mean, std, min, max, zero_frac)
}
"""Where `sums.derive` has them."""


def known(function: object) -> bool:
    """Whether the kernel serves this function."""
    try:
        return function is absmax or function in PLACES
    except TypeError:  # a callable that can't be hashed is none of ours
        return False


def measure(
    backend: Backend, tensors: Sequence[Tensor], functions: Sequence[Callable[..., object]]
) -> list[list[float]]:
    """Each function of each tensor, from one pass over them."""
    derived = s.derive(backend.measure(tensors).host().sums)
    low, high = s.STATS.index("min"), s.STATS.index("max")
    return [
        [
            float(builtins.max(-line[low], line[high])) if f is absmax else float(line[PLACES[f]])
            for f in functions
        ]
        for line in derived.tolist()
    ]
