"""`Agreement`: all ranks judge the same numbers, so all do the same.

One small exchange a step: each rank's norm (its part of it where gradients are sharded), whether it
was finite, and its loss. Gradients themselves are never reduced here: under DDP they are averaged
already and equal on all ranks.

A gloo group of our own, whatever the training's backend is. A rank that is gone ends the exchange,
not the training: this one then decides alone, and says so once.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed as dist

Floats: TypeAlias = NDArray[np.float64]

log = logging.getLogger("torchvitals")


class Agreement:
    """The ranks of this training; one process agrees with itself for nothing."""

    def __init__(self, *, wanted: bool, timeout_s: float) -> None:
        self.rank, self.world_size = 0, 1
        self._group: Any = None
        if wanted and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    @property
    def several(self) -> bool:
        """Whether there are others to ask."""
        return self._group is not None

    def gather(self, numbers: Floats) -> Floats:
        """(ranks, numbers), on every rank; this rank's alone when another is lost. A collective."""
        if self._group is None:
            return numbers[None]
        own = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float64))
        boxes = [torch.empty_like(own) for _ in range(self.world_size)]
        try:
            dist.all_gather(boxes, own, group=self._group)
        except (RuntimeError, ValueError) as error:
            self._lost(error)
            return numbers[None]
        return torch.stack(boxes).numpy()

    def names(self, names: list[str]) -> list[str]:
        """The names of all ranks, each once, in the order of the ranks. A collective."""
        if self._group is None:
            return names
        boxes: list[Any] = [None] * self.world_size
        try:
            dist.all_gather_object(boxes, names, group=self._group)
        except (RuntimeError, ValueError) as error:
            self._lost(error)
            return names
        return list(dict.fromkeys(name for box in boxes for name in box))

    def _lost(self, error: Exception) -> None:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        log.warning(
            "torchvitals: the guard can ask the other ranks no more (%s); rank %d decides alone.",
            text,
            self.rank,
        )
        self.close()

    def close(self) -> None:
        """Leave the group."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            try:
                dist.destroy_process_group(group)
            except (RuntimeError, ValueError, AssertionError, KeyError) as error:
                log.debug("torchvitals: leaving the guard's group: %s", error)
