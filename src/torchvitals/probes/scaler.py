"""The gradient scaler: the scale it works with, and the steps it skips.

    amp/scaler/scale      what this step's loss was multiplied with
    amp/scaler/skipped    1: a gradient was not finite, and the optimizer did not step

A scaler that finds an overflow does not call the optimizer's `step()`, so the optimizer's hooks see
nothing. Fused optimizers are called, and skip on the device: that is read later.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from torchvitals.probes.probe import Distributions, Notes, blank
from torchvitals.record import Key


@dataclass(slots=True)
class ScalerRaw:
    """A step under a scaler."""

    scale: Any
    skipped: list[Any] = field(default_factory=list)
    """Of each optimizer: whether it was skipped, as a number or a tensor to be read."""


class Scaler:
    """Keeps what the scaler did in a monitored step."""

    header = (Key("amp", "scaler", "scale"), Key("amp", "scaler", "skipped"))

    def __init__(self) -> None:
        self._raw: ScalerRaw | None = None

    def begins(self, scaler: GradScaler) -> None:
        """An optimizer is about to be stepped by the scaler, or skipped."""
        if self._raw is None:
            scale: Any = scaler._scale
            if isinstance(scale, Tensor):
                # It is updated in place; on a device, reading it would wait.
                scale = float(scale) if scale.is_cpu else scale.clone()
            self._raw = ScalerRaw(scaler._init_scale if scale is None else scale)

    def steps(self, optimizer: Optimizer) -> None:
        """The optimizer is called: a fused one may still skip."""
        if self._raw is not None:
            self._raw.skipped.append(getattr(optimizer, "found_inf", None))

    def skipped(self) -> None:
        """The optimizer was not called."""
        if self._raw is not None:
            self._raw.skipped.append(1.0)

    def take(self) -> ScalerRaw | None:
        """What this step saw; None without a scaler."""
        raw, self._raw = self._raw, None
        return raw

    def take_bins(self) -> Distributions:
        """None: it has no distributions."""
        return []

    def shape(self, _raw: ScalerRaw) -> Hashable:
        """All steps are alike."""
        return ()

    def values(self, raws: Sequence[ScalerRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        table = blank((len(raws), len(self.header)))
        for row, raw in zip(table, raws, strict=True):
            row[0] = float(raw.scale)
            row[1] = any(float(mark) > 0 for mark in raw.skipped if mark is not None)
        return table
