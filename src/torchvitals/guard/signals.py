"""Norms of gradients, each tensor's and all of them together, the cheapest way there is.

On a CPU the C kernel reads all gradients once; elsewhere `torch._foreach_norm` does, and one small
tensor comes to the host. Sums are kept in float32 or better whatever the gradients' dtype. Sharded
gradients (DTensor) give their local part; `weights` says how the parts add up over the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.stats import sums as s
from torchvitals.stats.backend import Backend
from torchvitals.stats.readable import readable
from torchvitals.stats.shards import locals_of, num_pieces

Floats: TypeAlias = NDArray[np.float64]


@dataclass(slots=True)
class Reading:
    """Norms of some gradients: on the host, or still on their device."""

    places: list[int]
    """Which of the optimizer's parameters have one."""
    norms: Floats | None = None
    device_norms: Tensor | None = None
    weights: Floats | None = None
    """How each local square counts in the sum over the ranks; None: no gradient is sharded."""
    scale: float = 1.0
    """What the gradients were multiplied with when they were read."""


class Norms:
    """Reads the gradients of one optimizer."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._native = backend.name.startswith("native")
        self._layout: Any = None
        self._sizes: list[int] = []

    def read(self, places: list[int], grads: Sequence[Tensor]) -> Reading:
        """Norms of these gradients, which belong to the parameters at `places`."""
        weights = None
        if any(type(grad) is not Tensor for grad in grads):  # asked at every step: cheap
            weights = np.array([share_of(grad) for grad in grads])
            grads = locals_of(grads)
        if self._native and all(grad.is_cpu for grad in grads):
            return Reading(places, norms=self._by_kernel(grads), weights=weights)
        return Reading(places, device_norms=by_operators(grads), weights=weights)

    def _by_kernel(self, grads: Sequence[Tensor]) -> Floats:
        if not grads:
            return np.zeros(0)
        if self._layout is None or len(self._sizes) != len(grads):
            self._sizes = [grad.numel() for grad in grads]
            self._layout = self._backend.layout(grads)
        sums = self._backend.measure(grads, layout=self._layout).sums
        norms = np.sqrt(sums[:, s.SUMSQ])
        bad = sums[:, s.NAN : s.NEGINF + 1]
        if bad.any():
            norms[bad.any(axis=1)] = np.inf
            norms[bad[:, 0] > 0] = np.nan
        return np.asarray(norms)


def by_operators(grads: Sequence[Tensor]) -> Tensor:
    """Norms as one tensor on the first gradient's device, without waiting for it."""
    if not grads:
        return torch.zeros(0)
    plain = [
        grad if grad.layout is torch.strided and not grad.is_complex() else readable(grad)[0]
        for grad in (g.detach() for g in grads)
    ]
    device = plain[0].device
    norms: list[Tensor | None] = [None] * len(plain)
    for kind in {(grad.device, grad.dtype) for grad in plain}:
        chosen = [i for i, grad in enumerate(plain) if (grad.device, grad.dtype) == kind]
        wide = torch.float64 if kind[1] is torch.float64 else torch.float32
        found = torch._foreach_norm([plain[i] for i in chosen], 2, wide)
        for i, norm in zip(chosen, found, strict=True):
            norms[i] = norm.to(device, torch.float32, non_blocking=True)
    return torch.stack([norm for norm in norms if norm is not None])


def share_of(tensor: Tensor) -> float:
    """What this rank's Σ g² counts in the sum over all ranks: 1 / the ranks that hold its piece."""
    return num_pieces(tensor) / _world_size()


def _world_size() -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
