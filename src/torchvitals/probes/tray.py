"""`Tray`: counters of many layers side by side: a few operators read and turn all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class Layer:
    """One layer's counters: of this window and of the one before."""

    line: int
    counts: Tensor
    before: Tensor
    totals: Tensor
    totals_before: Tensor
    rows: int = 0
    rows_before: int = 0

    def state(self) -> dict[str, Any]:
        """What it has counted."""
        return {
            "counts": torch.stack([self.counts, self.before]).cpu(),
            "totals": torch.stack([self.totals, self.totals_before]).cpu(),
            "rows": [self.rows, self.rows_before],
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Go on from there; counters of another number of units are of another layer."""
        if state is None or state["counts"].shape[1] != len(self.counts):
            return
        for ours, kept in (
            ((self.counts, self.before), state["counts"]),
            ((self.totals, self.totals_before), state["totals"]),
        ):
            for mine, theirs in zip(ours, kept, strict=True):
                mine.copy_(theirs)
        self.rows, self.rows_before = map(int, state["rows"])


class Tray:
    """Room for the counters of so many units on one device, of this window and the one before."""

    def __init__(self, device: torch.device, size: int) -> None:
        self.size = size
        self.layers: list[Layer] = []
        self._counts = torch.zeros((2, size), dtype=torch.int32, device=device)
        self._totals = torch.zeros((2, size), dtype=torch.float32, device=device)
        self._used = 0

    @property
    def room(self) -> int:
        """How many units find a place."""
        return self.size - self._used

    @property
    def counts(self) -> Tensor:
        """(2, units): of this window and of the one before."""
        return self._counts[:, : self._used]

    @property
    def totals(self) -> Tensor:
        """The same of the magnitudes."""
        return self._totals[:, : self._used]

    def layer(self, line: int, units: int) -> Layer:
        """Counters of so many units more; they keep their places."""
        place = slice(self._used, self._used + units)
        self._used += units
        found = Layer(line, *self._counts[:, place], *self._totals[:, place])
        self.layers.append(found)
        return found

    def turn(self) -> None:
        """Begin a new window."""
        for now, before in (self._counts, self._totals):
            before.copy_(now)
            now.zero_()
        for layer in self.layers:
            layer.rows_before, layer.rows = layer.rows, 0
