"""Tensors spread over a mesh (DTensor): what of one lies here, and in how many pieces it is cut.

The one place that knows placements; nothing here imports torch.distributed.tensor, which is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T", bound=Tensor | None)


def is_dtensor(tensor: Any) -> bool:
    """Whether a tensor is spread over a mesh."""
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def splits(placement: Any) -> bool:
    """Whether a dimension of the mesh cuts the tensor up (a strided shard is no `Shard`)."""
    return not placement.is_replicate() and not placement.is_partial()


def local(tensor: T) -> T:
    """The piece of it that lies here; a plain tensor is all here."""
    whole: Any = tensor
    if not is_dtensor(tensor):
        # The result of a collective that is still under way is a tensor of another class.
        return whole.trigger_wait() if hasattr(whole, "trigger_wait") else tensor
    if any(placement.is_partial() for placement in whole.placements):
        # Its pieces are summands, not parts: no statistic of theirs is one of the whole.
        whole = whole.redistribute(placements=_settled(whole))
    found: T = local(whole._local_tensor)
    return found


def locals_of(tensors: Sequence[Any]) -> list[Any]:
    """The pieces that lie here."""
    return [local(tensor) for tensor in tensors]


def num_pieces(tensor: Tensor) -> int:
    """In how many different pieces it is held; 1 for what every rank holds whole."""
    if not is_dtensor(tensor):
        return 1
    placed: Any = tensor
    sizes = placed.device_mesh.shape
    return prod(n for p, n in zip(placed.placements, sizes, strict=True) if splits(p))


def _settled(tensor: Any) -> list[Any]:
    from torch.distributed.tensor import Replicate

    return [Replicate() if p.is_partial() else p for p in tensor.placements]
