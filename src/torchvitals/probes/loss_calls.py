"""Sees loss functions being called, without a change to the training.

The functions of `torch.nn.functional` end in a call of an operator (`torch._C._nn.mse_loss`, …)
that they look up when they are called. While somebody listens, functions of ours stand in the
operators' places: that reaches `nn.CrossEntropyLoss` and every reference to `F.cross_entropy`,
however it was imported, and leaves these functions what they are (they pickle, and fx records
them). Ours call what was there with the arguments as they came and tell of it afterwards, with the
arguments of the function as the user gave them. When nobody listens, everything is as it was.

Not told: calls inside compiled graphs, with inputs that need no gradient (an evaluation), of
activation checkpointing's second forward, and on tensors that can't be read where they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.jit import _builtins
from torch.nn import functional

from torchvitals.probes.attention_calls import is_plain
from torchvitals.stats.swap import Swap

_current_graph_task_id = torch._C._current_graph_task_id

_OPERATORS: tuple[tuple[Any, str], ...] = (
    (torch._C._nn, "cross_entropy_loss"),
    (torch._C._nn, "nll_loss_nd"),
    (torch._C._nn, "binary_cross_entropy"),
    (torch, "binary_cross_entropy_with_logits"),
    (torch._C._nn, "mse_loss"),
    (torch._C._nn, "l1_loss"),
    (torch._C._nn, "smooth_l1_loss"),
)
_NAMES: dict[CodeType, str] = {
    function.__code__: function.__name__
    for function in (
        functional.cross_entropy,
        functional.nll_loss,
        functional.binary_cross_entropy,
        functional.binary_cross_entropy_with_logits,
        functional.mse_loss,
        functional.l1_loss,
        functional.smooth_l1_loss,
    )
}
_SUM = 2
"""`reduction="sum"` as the operators have it."""


@dataclass(slots=True, eq=False)
class LossCall:
    """One call of a loss function."""

    name: str
    input: Tensor
    target: Tensor
    is_sum: bool
    ignore_index: int | None


class Listener(Protocol):
    """Is told of calls. Neither may raise."""

    def see(self, call: LossCall) -> None:
        """A call was made."""

    def fail(self, error: Exception) -> None:
        """A call was made that could not be told."""


_listeners: list[tuple[Listener, int]] = []
_swaps: list[Swap] = []


def listen(listener: Listener) -> None:
    """Tell of calls made on this thread from now on."""
    if any(known is listener for known, _ in _listeners):
        return
    if not _listeners:
        _install()
    _listeners.append((listener, get_ident()))


def leave(listener: Listener) -> None:
    """Tell no more."""
    kept = [entry for entry in _listeners if entry[0] is not listener]
    if len(kept) < len(_listeners):
        _listeners[:] = kept
        if not kept:
            for swap in _swaps:
                swap.remove()


def _install() -> None:
    if not _swaps:
        # TorchScript knows operators by identity, from a table it makes when it is first needed:
        # made now, it holds theirs.
        with suppress(Exception):
            _builtins._get_builtin_table()  # type: ignore[no-untyped-call]
        _swaps.extend(Swap(owner, name, _around) for owner, name in _OPERATORS)
    for swap in _swaps:
        swap.install()


def _around(below: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(below)
    def loss(*args: Any, **kwargs: Any) -> Any:
        out = below(*args, **kwargs)
        # In a graph that is being compiled this is all that is traced.
        if not torch.compiler.is_compiling() and not ours.__vitals_over__:
            _tell(sys._getframe(1))
        return out

    ours: Any = loss
    with suppress(Exception):  # a function scripted meanwhile takes ours for theirs
        _builtins._register_builtin(loss, f"aten::{below.__name__}")
    return loss


def _tell(frame: FrameType) -> None:
    name = _NAMES.get(frame.f_code)
    if name is None or _current_graph_task_id() != -1 or not torch.is_grad_enabled():
        return
    thread = get_ident()
    here = [listener for listener, wanted in tuple(_listeners) if wanted == thread]
    try:
        call = _call(name, frame.f_locals)
    except Exception as error:  # nothing may reach the training from here
        for listener in here:
            listener.fail(error)
        return
    if call is not None:
        for listener in here:
            listener.see(call)


def _call(name: str, given: dict[str, Any]) -> LossCall | None:
    x, target = given["input"], given["target"]
    if not (isinstance(x, Tensor) and x.requires_grad and is_plain(x) and is_plain(target)):
        return None
    if torch._C._get_tracing_state() is not None:
        return None
    number = given.get("reduction_enum")
    is_sum = given["reduction"] == "sum" if number is None else number == _SUM
    return LossCall(name, x, target, is_sum, given.get("ignore_index"))
