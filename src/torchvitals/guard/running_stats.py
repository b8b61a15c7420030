"""`RunningStats`: a skipped batch leaves no trace in batch norms either.

A batch with a NaN makes running means NaN for good, though its step is skipped. Those of
normalisation layers are kept as they were after the last good step and written back with a skip.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class RunningStats:
    """Of all normalisation layers in training mode."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        found = {
            id(buffer): buffer
            for model in models
            for module in model.modules()
            if isinstance(module, _NormBase)
            for buffer in module.buffers(recurse=False)
        }
        kinds = {(buffer.device, buffer.dtype) for buffer in found.values()}
        self._live: list[list[Tensor]] = [
            [b for b in found.values() if (b.device, b.dtype) == kind] for kind in kinds
        ]
        self._kept = [[b.detach().clone() for b in some] for some in self._live]

    def keep(self) -> None:
        """They are good."""
        for kept, live in zip(self._kept, self._live, strict=True):
            torch._foreach_copy_(kept, live)

    def restore(self) -> None:
        """Make them what they were."""
        for kept, live in zip(self._kept, self._live, strict=True):
            torch._foreach_copy_(live, kept)

    def settle(self, flagged: Tensor) -> None:
        """Keep or restore as a flag on the device says, without asking what it says."""
        for kept, live in zip(self._kept, self._live, strict=True):
            for old, now in zip(kept, live, strict=True):
                now.copy_(torch.where(flagged.to(now.device) > 0, old, now))
                old.copy_(now)
