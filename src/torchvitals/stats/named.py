"""Statistics by name: `stats.norm`, `stats.rms` … as functions of a tensor.

Handed to `add_gradient_metric("norm", stats.norm)` they are recognised, and all tensors are
measured together in the kernel's one pass; called on a tensor they compute the same with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType

import numpy as np
import torch
from numpy.typing import NDArray
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


VARARGS, VARKEYWORDS = 4, 8
"""Flags of code objects that take any number of arguments."""

PLACES: dict[Callable[..., object], int] = {
    function: s.STATS.index(function.__name__)
    for function in (norm, rms, mean, std, min, max, zero_frac)
}
"""Where `sums.derive` has them."""


def recognised(function: Callable[..., object]) -> Callable[..., object] | None:
    """The statistic of ours that this function is; None when it is something else.

    A lambda that reads exactly like one of `SPELLINGS` (the same instructions, names and constants,
    nothing from outside) is that statistic, too.
    """
    if function is absmax or (isinstance(function, FunctionType) and function in PLACES):
        return function
    spelled = _spelling(function)
    return None if spelled is None else _SPELLED.get(spelled)


def _spelling(function: object) -> tuple[object, ...] | None:
    if not isinstance(function, FunctionType) or function.__closure__ or function.__defaults__:
        return None
    code = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & (VARARGS | VARKEYWORDS):
        return None
    return code.co_code, code.co_names, code.co_consts


ROW_MEANS = tuple(
    _spelling(function) for function in (lambda x: x.mean(dim=-1), lambda x: x.mean(-1))
)
"""Averaged over their elements, as metrics are, the means of equally long rows are the mean."""


def is_mean(function: Callable[..., object]) -> bool:
    """Whether the average of what it returns is the tensor's mean."""
    return recognised(function) is mean or _spelling(function) in ROW_MEANS


SPELLINGS: tuple[tuple[Callable[..., object], Callable[..., object]], ...] = (
    (lambda x: x.norm(), norm),
    (lambda x: x.mean(), mean),
    (lambda x: x.min(), min),
    (lambda x: x.max(), max),
    (lambda x: x.abs().max(), absmax),
)
_SPELLED = {_spelling(function): statistic for function, statistic in SPELLINGS}


ALONE: dict[Callable[..., object], Callable[[s.Sums], NDArray[np.float64]]] = {
    norm: s.norms,
    mean: s.means,
}
"""Those that most people ask for, without the work for all others."""


def columns(
    backend: Backend, tensors: Sequence[Tensor], functions: Sequence[Callable[..., object]]
) -> list[list[float]]:
    """Each function's values of all tensors, from one pass over them."""
    if all(function in ALONE for function in functions):
        sums = backend.measure(tensors, thin=True).host().sums
        return [ALONE[function](sums).tolist() for function in functions]
    derived = s.derive(backend.measure(tensors).host().sums)
    low, high = derived[:, s.STATS.index("min")], derived[:, s.STATS.index("max")]
    return [
        (np.maximum(-low, high) if function is absmax else derived[:, PLACES[function]]).tolist()
        for function in functions
    ]


def measure(
    backend: Backend, tensors: Sequence[Tensor], functions: Sequence[Callable[..., object]]
) -> list[list[float]]:
    """Each tensor's values of all functions, from one pass over them."""
    return [list(line) for line in zip(*columns(backend, tensors, functions), strict=True)]
