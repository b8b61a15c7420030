"""Statistics by name: `stats.norm`, `stats.rms` … as functions of a tensor.

Handed to `add_gradient_metric("norm", stats.norm)` they are recognised, and all tensors are
measured together in the kernel's one pass; called on a tensor they compute the same with torch.
That holds for NaN and Inf, too: the kernel's sums leave them out and count them, and a value that
they would have changed is made of the counts.
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
"""The means of rows, which are equally long: averaged over their elements they are the mean."""


def is_mean(function: Callable[..., object]) -> bool:
    """Whether the average of what it returns is the tensor's mean."""
    return recognised(function) is mean or is_row_mean(function)


def is_row_mean(function: Callable[..., object]) -> bool:
    """Whether it returns a mean for each row: so many values of each tensor, not one."""
    return _spelling(function) in ROW_MEANS


def is_statistic(function: Callable[..., object], name: str) -> bool:
    """Whether a metric of this function is the statistic of that name."""
    found = mean if is_mean(function) else recognised(function)
    return found is not None and getattr(found, "__name__", None) == name


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


def _or_inf(sums: s.Sums) -> NDArray[np.float64]:
    """What a statistic of sizes is: NaN where there is one, else Inf."""
    return np.where(sums[:, s.NAN] > 0, np.nan, np.inf)


def _mean_of_inf(sums: s.Sums) -> NDArray[np.float64]:
    nan, up, down = (sums[:, field] > 0 for field in (s.NAN, s.POSINF, s.NEGINF))
    return np.where(nan | (up & down), np.nan, np.where(up, np.inf, -np.inf))


def _end_of_inf(sums: s.Sums, sign: int, end: int) -> NDArray[np.float64]:
    """An extreme: Inf of its own sign, else the finite one, which is the other Inf if none is."""
    most = s.POSINF if sign > 0 else s.NEGINF
    found = np.where(sums[:, most] > 0, sign * np.inf, sums[:, end])
    return np.where(sums[:, s.NAN] > 0, np.nan, found)


NON_FINITE: dict[Callable[..., object], Callable[[s.Sums], NDArray[np.float64]]] = {
    norm: _or_inf,
    rms: _or_inf,
    absmax: _or_inf,
    mean: _mean_of_inf,
    std: lambda sums: np.full(len(sums), np.nan),
    min: lambda sums: _end_of_inf(sums, -1, s.MIN),
    max: lambda sums: _end_of_inf(sums, 1, s.MAX),
}
"""What torch gives for tensors with elements that are not finite. `zero_frac` counts all anyway."""


def values(sums: s.Sums, functions: Sequence[Callable[..., object]]) -> list[NDArray[np.float64]]:
    """Each function's values of all lines of sums, as torch would give them."""
    if all(function in ALONE for function in functions):
        found = [ALONE[function](sums) for function in functions]
    else:
        derived = s.derive(sums)
        low, high = derived[:, PLACES[min]], derived[:, PLACES[max]]
        found = [
            np.maximum(-low, high) if function is absmax else derived[:, PLACES[function]]
            for function in functions
        ]
    counts = sums[:, s.NAN :]
    if counts.any():
        lines = np.flatnonzero(counts.any(axis=1))
        for function, column in zip(functions, found, strict=True):
            if function in NON_FINITE:
                column[lines] = NON_FINITE[function](sums[lines])
    return found


def columns(
    backend: Backend, tensors: Sequence[Tensor], functions: Sequence[Callable[..., object]]
) -> list[list[float]]:
    """Each function's values of all tensors, from one pass over them."""
    thin = all(function in ALONE for function in functions)
    sums = backend.measure(tensors, thin=thin).host().sums
    return [column.tolist() for column in values(sums, functions)]


def measure(
    backend: Backend, tensors: Sequence[Tensor], functions: Sequence[Callable[..., object]]
) -> list[list[float]]:
    """Each tensor's values of all functions, from one pass over them."""
    return [list(line) for line in zip(*columns(backend, tensors, functions), strict=True)]
