"""Catches gradient clipping, however the functions were imported.

`clip_grad_norm_`, `clip_grad_value_` and `clip_grads_with_norm_` are `no_grad` wrappers around the
real function. Swapping that function inside the wrapper reaches every reference to it, also one
taken by ``from torch.nn.utils import clip_grad_norm_`` long before the monitor came.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

from torchvitals.record import VitalsError

Before = Callable[[list[Tensor]], Any]
After = Callable[[Any, float, Any], None]
NormOf = Callable[[Any, Any, Any], Any]
"""Finds the total norm in arguments, keywords and result."""


class ClipCatcher:
    """Calls `before(parameters)` and `after(what before gave, limit, norm)` around each clipping.

    The norm is what `clip_grad_norm_` returned or `clip_grads_with_norm_` was given; None for
    clipping by value. Both callbacks must not raise.
    """

    def __init__(self, before: Before, after: After) -> None:
        self._before, self._after = before, after
        self._undo: list[Callable[[], None]] = []
        self._inside = False
        """One of the functions is under way: `clip_grad_norm_` calls `clip_grads_with_norm_`."""

    def install(self) -> None:
        """Start catching."""
        for name, limit_name, norm_of in (
            ("clip_grad_norm_", "max_norm", _returned),
            ("clip_grad_value_", "clip_value", _none),
            ("_clip_grads_with_norm_", "max_norm", _given),
        ):
            function = getattr(clip_grad, name, None)
            if function is None:  # torch 2.5 can't clip by a norm that is known already
                continue
            cell = _inner_cell(function)
            cell.cell_contents = ours = self._around(cell.cell_contents, limit_name, norm_of)
            self._undo.append(partial(_restore, cell, ours))

    def remove(self) -> None:
        """Stop catching."""
        while self._undo:
            self._undo.pop()()

    def _around(
        self, function: Callable[..., Any], limit_name: str, norm_of: NormOf
    ) -> Callable[..., Any]:
        catcher = self

        @wraps(function)
        def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if catcher._inside:
                return function(parameters, *args, **kwargs)
            # A generator can be walked once: the original gets the list instead.
            if not isinstance(parameters, Tensor):
                parameters = list(parameters)
            limit = args[0] if args else kwargs.get(limit_name)
            listed = [parameters] if isinstance(parameters, Tensor) else parameters
            note = catcher._before(listed)
            catcher._inside = True
            try:
                result = function(parameters, *args, **kwargs)
            finally:
                catcher._inside = False
            if note is not None:
                catcher._after(note, float(limit), norm_of(args, kwargs, result))  # type: ignore[arg-type]
            return result

        clip.__vitals_original__ = function  # type: ignore[attr-defined]
        return clip


def _returned(_args: Any, _kwargs: Any, result: Any) -> Any:
    return result


def _given(args: Any, kwargs: Any, _result: Any) -> Any:
    return args[1] if len(args) > 1 else kwargs.get("total_norm")


def _none(_args: Any, _kwargs: Any, _result: Any) -> None:
    """Clipping by value knows no norm."""


def _inner_cell(function: Callable[..., Any]) -> Any:
    """The closure cell in which a `no_grad` wrapper keeps the function it wraps."""
    code, closure = function.__code__, function.__closure__ or ()
    for name, cell in zip(code.co_freevars, closure, strict=True):
        if name == "func":
            return cell
    raise VitalsError(
        f"{function.__name__} of torch {torch.__version__} is not built as expected, so clipping "
        "can't be seen; gradients are measured at the optimizer's step instead"
    )


def _restore(cell: Any, ours: Any) -> None:
    """Take our layer out of the chain of wrappers, wherever in it we are by now."""
    inner = ours.__vitals_original__
    if cell.cell_contents is ours:
        cell.cell_contents = inner
        return
    outer = cell.cell_contents
    while outer is not None and getattr(outer, "__vitals_original__", None) is not ours:
        outer = getattr(outer, "__vitals_original__", None)
    if outer is not None:
        index = outer.__code__.co_freevars.index("function")
        outer.__closure__[index].cell_contents = inner
        outer.__vitals_original__ = inner
