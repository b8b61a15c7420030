"""A model to compare with: activations of both meet here, parameters are paired by name."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


class Pairing:
    """Activations of the watched and the reference model, whichever is called first."""

    def __init__(self, *, offload: bool) -> None:
        self._offload = offload
        self._waiting: dict[tuple[str, bool], deque[Tensor]] = {}

    def meet(self, name: str, tensor: Tensor, is_reference: bool) -> tuple[Tensor, Tensor] | None:
        """(ours, the reference's) once both are there; the same call of both, in order."""
        other = self._waiting.get((name, not is_reference))
        if other:
            first = other.popleft()
            return (first, tensor) if is_reference else (tensor, first)
        kept = tensor.detach()
        # An in-place layer behind this one would change what waits.
        kept = kept.cpu() if self._offload and not kept.is_cpu else kept.clone()
        self._waiting.setdefault((name, is_reference), deque()).append(kept)
        return None

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()


def alike(reference: Tensor, tensor: Tensor) -> Tensor:
    """The reference's tensor on the device and in the precision of the other."""
    return reference.detach().to(device=tensor.device, dtype=tensor.dtype)


def copy_of(model: nn.Module) -> nn.Module:
    """The model as it is now, for comparison only."""
    twin = copy.deepcopy(model)
    twin.requires_grad_(False)
    return twin


@torch.no_grad()
def run_quietly(model: nn.Module, args: Any, kwargs: Any) -> Any:
    """Call a model in eval mode on inputs moved to where it is: no randomness, no state changed."""
    parameter = next(model.parameters(), None)

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or parameter is None:
            return value
        value = value.detach().to(parameter.device)
        return value.to(parameter.dtype) if value.is_floating_point() else value

    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        inputs, named = tree_map(moved, (args, kwargs))
        return model(*inputs, **named)
    finally:
        for module, training in modes:
            module.training = training


def pairs_of(
    ours: dict[str, Tensor], theirs: dict[str, Tensor]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Parameters that both models have, by name."""
    for name, tensor in ours.items():
        other = theirs.get(name)
        if other is not None and other.shape == tensor.shape:
            yield name, tensor.detach(), alike(other, tensor)
