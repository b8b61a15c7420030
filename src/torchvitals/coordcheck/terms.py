"""The terms of one call: how much of a module's change is its own weights', how much its input's.

    f_t(x_t) − f_0(x_0)  =  [f_t(x_t) − f_0(x_t)]  +  [f_0(x_t) − f_0(x_0)]
                                 effective                 propagating

Here are the words for it and the registry of rules, one a layer type; `layers.py` holds those of
torch's own layers and `decompose.py` asks them. Everything is at least float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan, prod
from typing import overload

import torch
from torch import Tensor, nn

from torchvitals.coordcheck.calls import Call
from torchvitals.coordcheck.operator_norm import operator_norm
from torchvitals.probes.activations import is_signal, tensors_in

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A module and its reference, and a call of each with the same batch."""

    module: nn.Module
    reference: nn.Module
    now: Call
    before: Call | None
    """None when the reference was not called, as an expert that got no tokens."""
    image_dims: frozenset[int] = frozenset()
    """Numbers of dimensions of the images in this model: their features are channels."""

    def inputs(self) -> tuple[Tensor | None, Tensor | None]:
        """x_t and x_0: the first tensor given; no x_0 where its shape is another."""
        x = wide(first_signal(self.now))
        if x is None or self.before is None:
            return x, None
        before = wide(first_signal(self.before))
        return x, None if before is None or before.shape != x.shape else before.to(x.device)

    def features(self, tensor: Tensor) -> Dims:
        """Which dimension holds the features of a tensor of no particular layer."""
        if tensor.dim() == 0:
            return ()
        return (1,) if tensor.dim() in self.image_dims else (-1,)


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The two terms, and the outputs they are the difference of."""

    effective: Tensor
    propagating: Tensor | None
    now: Tensor
    """f_t(x_t)."""
    before: Tensor | None
    """f_0(x_0)."""
    dims: Dims
    """The feature dimensions."""

    def plus(self, bias: Tensor | None, before: Tensor | None) -> Terms:
        """With a bias now, and one before, added to what is without."""
        if bias is None or before is None:
            return self
        return Terms(
            effective=self.effective + (bias - before),
            propagating=self.propagating,
            now=self.now + bias,
            before=None if self.before is None else self.before + before,
            dims=self.dims,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """The matrices behind the terms without bias, and the norms of what they act on."""

    delta: Tensor
    """W_t − W_0: a matrix, a stack of blocks, or a diagonal as a vector."""
    reference: Tensor
    x: Tensor
    """‖x_t‖ at each position."""
    dx: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Decomposition:
    """All there is to say about one call."""

    outputs: dict[str, Terms]
    """By the way to each tensor of the output: ``""``, ``[0]``, ``[logits]``."""
    weight: Terms | None = None
    """With the bias taken out."""
    x: Tensor | None = None
    dx: Tensor | None = None
    x_dims: Dims = (-1,)
    normalised: tuple[Tensor, Tensor | None] | None = None
    """Of a normalisation: what its weight acts on, at t and its change."""
    operators: Operators | None = None
    inner: dict[str, Decomposition] = field(default_factory=dict)
    """By name, of layers inside that are no modules which are called."""

    def alignments(self) -> tuple[float, float]:
        """‖ΔW x_t‖/(‖ΔW‖‖x_t‖) and ‖W_0 Δx‖/(‖W_0‖‖Δx‖), of means over positions; else NaN.

        1: the inputs lie along what the matrix stretches most. Two lots of matrix products for the
        operator norms (`operator_norm.py`).
        """
        found, weight = self.operators, self.weight
        if found is None or weight is None:
            return nan, nan
        effective = _ratio(weight.effective, weight.dims, found.delta, found.x)
        if weight.propagating is None or found.dx is None:
            return effective, nan
        return effective, _ratio(weight.propagating, weight.dims, found.reference, found.dx)


def _ratio(term: Tensor, dims: Dims, operator: Tensor, x: Tensor) -> float:
    size = operator_norm(operator) * float(x.mean())
    return float(norms(term, dims).mean()) / size if size > 0.0 else nan


Rule = Callable[[Pair], Decomposition | None]
"""The terms of a pair; None when the call is none it knows."""

RULES: dict[type[nn.Module], Rule] = {}


def rule(*types: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Register the terms of a layer type, and of subclasses that keep its forward."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(types, function))
        return function

    return register


def rule_of(module: nn.Module) -> Rule | None:
    """The rule of the nearest type whose forward this module still runs."""
    for kind in type(module).__mro__:
        if kind in RULES:
            kept = type(module).forward is kind.forward and "forward" not in vars(module)
            return RULES[kind] if kept else None
    return None


def norms(tensor: Tensor, dims: Dims) -> Tensor:
    """L2 over the feature dimensions, one value a position."""
    return torch.linalg.vector_norm(tensor, dim=dims) if dims else tensor.abs()


def rms(tensor: Tensor, dims: Dims) -> Tensor:
    """L2 / √fan_out, one value a position: the size of a coordinate."""
    fan_out = prod(tensor.shape[dim] for dim in dims)
    return norms(tensor, dims) / math.sqrt(max(fan_out, 1))


@overload
def wide(tensor: Tensor) -> Tensor: ...
@overload
def wide(tensor: None) -> None: ...
@overload
def wide(tensor: Tensor | None) -> Tensor | None: ...
def wide(tensor: Tensor | None) -> Tensor | None:
    """At least float32: a sum in bfloat16 of equal values stops growing at 256."""
    if tensor is None or tensor.dtype in (torch.float64, torch.complex128):
        return None if tensor is None else tensor.detach()
    return tensor.detach().to(torch.complex64 if tensor.is_complex() else torch.float32)


def first_signal(call: Call) -> Tensor | None:
    """The first tensor of values among a call's arguments, then its keywords."""
    given = tensors_in((call.args, call.kwargs))
    return next((tensor for _, tensor in given if is_signal(tensor)), None)
