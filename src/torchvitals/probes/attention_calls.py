"""Sees attention being computed, without a change to the model.

While somebody listens, functions of ours stand in the place of
`torch.nn.functional.scaled_dot_product_attention` and of `multi_head_attention_forward` beside it,
which `nn.MultiheadAttention` calls. They call what was there with the arguments as they came, and
tell of it afterwards. Files of the models' classes that took the first function by
``from torch.nn.functional import …`` get ours for that time, too. When nobody listens any more,
everything is as it was.

Not told: calls inside compiled graphs, of activation checkpointing's second forward, and with
tensors whose values can't be read where they are (shards, nested, traced, part of a vmap, captured
in a CUDA graph).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from types import FrameType, FunctionType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchvitals.record import VitalsError
from torchvitals.stats.swap import Swap

_sdpa = torch._C._nn.scaled_dot_product_attention
_current_graph_task_id = torch._C._current_graph_task_id
_is_functorch = torch._C._functorch.is_functorch_wrapped_tensor

_ORDER = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """One attention: what went in and came out."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    mask: Tensor | None = None
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    num_heads: int | None = None
    """Of three-dimensional tensors, where it is known."""


class Listener(Protocol):
    """Is told of calls. Neither may raise."""

    def see(self, frame: FrameType, call: AttentionCall) -> None:
        """A call was made; `frame` is the one it was made from."""

    def fail(self, error: Exception) -> None:
        """A call was made that could not be told."""


_listeners: list[Listener] = []
_swaps: dict[tuple[int, str], Swap] = {}


def listen(listener: Listener, classes: set[type]) -> None:
    """Tell of calls from now on, also of those made in the files of these classes."""
    if listener not in _listeners:
        _install(classes)
        _listeners.append(listener)


def leave(listener: Listener) -> None:
    """Tell no more."""
    if listener in _listeners:
        _listeners.remove(listener)
        if not _listeners:
            for swap in _swaps.values():
                swap.remove()


def _install(classes: set[type]) -> None:
    wanted: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (functional, "scaled_dot_product_attention", _attention_around),
        (functional, "multi_head_attention_forward", _forward_around),
    ]
    bias = sys.modules.get("torch.nn.attention.bias")
    if bias is not None:
        wanted.append((bias.CausalBias, "__torch_function__", _bias_around))
    for module in _homes(classes):
        # Where they were taken by `from torch.nn.functional import …`.
        names = [name for name, value in list(vars(module).items()) if value is _sdpa]
        wanted += [(module, name, _attention_around) for name in names]
    for owner, name, around in wanted:
        swap = _swaps.get((id(owner), name))
        if swap is None:
            swap = _swaps[id(owner), name] = Swap(owner, name, around)
        swap.install()


def _homes(classes: set[type]) -> list[ModuleType]:
    """The files in which the classes are written, torch's own apart."""
    names = {base.__module__ for cls in classes for base in cls.__mro__}
    own = (name for name in names if name.partition(".")[0] not in {"torch", "builtins"})
    return [sys.modules[name] for name in own if name in sys.modules]


def _attention_around(below: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(below)
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        out = below(*args, **kwargs)
        # In a graph that is being compiled this is all that is traced.
        if not torch.compiler.is_compiling() and not ours.__vitals_over__:
            _tell(sys._getframe(1), lambda: _call(out, args, kwargs))
        return out

    ours: Any = scaled_dot_product_attention
    return scaled_dot_product_attention


def _call(output: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    given = dict(zip(_ORDER, args, strict=False)) | kwargs
    return AttentionCall(
        query=given["query"],
        key=given["key"],
        value=given["value"],
        output=output,
        mask=given.get("attn_mask"),
        is_causal=given.get("is_causal", False),
        scale=given.get("scale"),
        enable_gqa=given.get("enable_gqa", False),
    )


def _tell(frame: FrameType, made: Callable[[], AttentionCall | None]) -> None:
    # Activation checkpointing runs the forward again inside the backward pass: not counted.
    if _current_graph_task_id() != -1:
        return
    try:
        call = made()
        if call is None or not all(
            map(is_plain, (call.query, call.key, call.value, call.output, call.mask))
        ):
            return
    except Exception as error:  # nothing may reach the training from here
        for listener in tuple(_listeners):
            listener.fail(error)
        return
    for listener in tuple(_listeners):
        listener.see(frame, call)


def is_plain(x: Any) -> bool:
    """Whether our operators can look at a tensor: not at shards, traces and parts of a vmap."""
    if x is None:
        return True
    return (
        type(x) in {Tensor, nn.Parameter}
        and x.layout is torch.strided
        and not (x.is_nested or x.is_meta or x.is_complex() or _is_functorch(x))
        and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _forward_around(below: Callable[..., Any]) -> Callable[..., Any]:
    """Sees `need_weights=True`, where torch multiplies by itself; else the function above does."""
    # Somebody else's in its place is not looked into.
    theirs = type(below) is FunctionType and below.__globals__ is vars(functional)
    places = list(signature(below).parameters) if theirs else []

    @wraps(below)
    def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or ours.__vitals_over__ or not theirs:
            return below(*args, **kwargs)
        given = dict(zip(places, args, strict=False)) | kwargs
        if not given.get("need_weights", True):
            return below(*args, **kwargs)
        products = Products()
        out = products.inside(below)(*args, **kwargs)
        _tell(sys._getframe(1), lambda: products.call(given))
        return out

    ours: Any = multi_head_attention_forward
    return multi_head_attention_forward


class Products:
    """Stands for `torch` in one call of a function, and notes the batched products it makes."""

    def __init__(self) -> None:
        self._made: list[tuple[tuple[Any, ...], Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def bmm(self, *args: Any, **kwargs: Any) -> Tensor:
        """Weights times values, and queries times keys without a mask."""
        self._made.append((args, torch.bmm(*args, **kwargs)))
        return self._made[-1][1]

    def baddbmm(self, *args: Any, **kwargs: Any) -> Tensor:
        """Queries times keys with a mask."""
        self._made.append((args, torch.baddbmm(*args, **kwargs)))
        return self._made[-1][1]

    def inside(self, function: Any) -> Callable[..., Any]:
        """The same function with this in the place of `torch`; the one there is stays as it is."""
        names = {**function.__globals__, "torch": self}
        same = FunctionType(
            function.__code__, names, function.__name__, function.__defaults__, function.__closure__
        )
        same.__kwdefaults__ = function.__kwdefaults__
        return same

    def call(self, given: dict[str, Any]) -> AttentionCall | None:
        """The attention that was computed."""
        if len(self._made) != 2:
            if not all(is_plain(given.get(name)) for name in _ORDER[:3]):
                return None  # torch hands these to others before it multiplies
            raise VitalsError(
                f"multi_head_attention_forward of torch {torch.__version__} is not built as "
                "expected, so attention with need_weights=True can't be seen"
            )
        ((*mask, scaled, key), _), ((_, value), output) = self._made
        dtype = torch.promote_types(scaled.dtype, torch.float32)
        return AttentionCall(
            query=scaled.detach().to(dtype) * scaled.shape[-1] ** 0.5,
            key=key.transpose(-1, -2),
            value=value,
            output=output,
            mask=mask[0] if mask else None,
            num_heads=given["num_heads"],
        )


def _bias_around(below: Any) -> Any:
    """`CausalBias` knows the function by identity: while ours stands there, theirs is meant too."""
    inner = below.__func__

    @wraps(inner)
    def torch_function(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _sdpa:
            func = functional.scaled_dot_product_attention
        return inner(cls, func, types, args, kwargs)

    return classmethod(torch_function)
