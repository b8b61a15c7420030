"""Sharded parameters: what of a DTensor lies here, and whether this rank counts it.

A parameter of FSDP2 or of tensor parallelism is a DTensor. Each rank measures its own piece, and
the sums of all pieces are the sums of the whole. Where a piece is held by several ranks (the
replicated dimension of HSDP) only those at coordinate 0 of that dimension count it.

A plain tensor is held whole by every rank (DDP): the writer measures it, nobody adds to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.stats.shards import is_dtensor, local, num_pieces, splits

WRITER = 0
"""The rank that the sums come together on."""


def counts_here(tensor: Tensor) -> bool:
    """Whether this rank's piece is counted: of equal pieces one is."""
    if not is_dtensor(tensor):
        return False
    placed: Any = tensor
    mesh = placed.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None or not bool((mesh.mesh == WRITER).any()):
        # The writer's mesh holds all pieces; that of others (FSDP within tensor parallelism: one
        # for each rank of a group) holds them again.
        return False
    return all(
        place == 0
        for place, placement in zip(coordinate, placed.placements, strict=True)
        if not splits(placement)
    )


class Shards:
    """Which of a probe's parameters are sharded, and which of these this rank counts."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self.any = any(map(is_dtensor, parameters))
        self.sharded: NDArray[np.bool_] = np.array(
            [num_pieces(p) > 1 for p in parameters], dtype=np.bool_
        )
        self.counted: NDArray[np.bool_] = self.sharded & np.array(
            [counts_here(p) for p in parameters], dtype=np.bool_
        )

    def local(self, line: int) -> Tensor:
        """The piece of a parameter that lies here. FSDP may lay it elsewhere: ask each time."""
        parameter = self._parameters[line]
        return local(parameter) if self.any else parameter

    def grad(self, line: int) -> Tensor | None:
        """The gradient of that piece."""
        grad = self._parameters[line].grad
        return local(grad) if self.any else grad

    def size(self, line: int) -> int:
        """Elements that lie here."""
        return self.local(line).numel()


def splits_features(parameters: Sequence[Tensor], modules: Sequence[torch.nn.Module]) -> bool:
    """Whether layers themselves are split over ranks (tensor parallelism), not their weights alone.

    Then the ranks of a group see the same batch, and unit i of two ranks are two units.
    """
    sharded = [p for p in parameters if is_dtensor(p)]
    if not sharded:
        return False
    gathered: set[int] = set()
    for module in modules:
        if any(cls.__name__ == "FSDPModule" for cls in type(module).__mro__):
            gathered.update(id(p) for p in module.parameters())
    for parameter in sharded:
        placed: Any = parameter
        if sum(map(splits, placed.placements)) > (1 if id(parameter) in gathered else 0):
            return True
    return False
