"""Units of a layer that never fire or hardly do, and activations stuck at their ends.

A unit is dead when it is active in fewer than 1 % of the rows seen over many batches, not when it
is silent in one: 70 % zeros after a ReLU are normal. It is dormant when its mean magnitude is at
most 2.5 % of the mean over the layer's units. Two counters a unit, over a window that moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, device, nn
from torch import cat as torch_cat

from torchvitals.probes.tray import Layer, Tray
from torchvitals.stats.backend import Activity

ROWS = 64
"""Rows of a batch looked at."""
PARTLY_ROWS = 16
"""The same where only a part of an output is read."""
WINDOW = 32
"""Monitored steps after which the older half of the counts is dropped."""
MIN_STEPS = 8
"""Dead units are counted once in that many monitored steps."""
MIN_ROWS = 256
"""Rows that must have been seen before a unit can be called dead."""
FIRST_TRAY = 4096
"""Units whose counters find a place in the first tray."""
DEAD_SHARE = 0.01
DORMANT_SHARE = 0.025
"""Of the layer's mean |h| (Sokar et al. 2023, arXiv 2302.12902)."""

END_SHARE = 0.025
"""Saturated: within this share of the range of either end (tanh: |x| ≥ 0.95)."""

_FLOORS: dict[type[nn.Module], float] = {
    nn.ReLU: 0.0,
    nn.ReLU6: 0.0,
    nn.Threshold: 0.0,
    # These approach zero without reaching it.
    nn.GELU: 1e-3,
    nn.SiLU: 1e-3,
    nn.Mish: 1e-3,
    nn.Softplus: 1e-3,
    nn.Hardswish: 1e-3,
}

_ENDS: dict[type[nn.Module], tuple[float, float]] = {
    nn.Tanh: (-1.0, 1.0),
    nn.Softsign: (-1.0, 1.0),
    nn.Sigmoid: (0.0, 1.0),
    nn.Hardsigmoid: (0.0, 1.0),
}


def activity_floor(module: nn.Module) -> float | None:
    """Above which magnitude a unit of this activation counts as active; None: it can't die."""
    return _FLOORS.get(type(module))


def bounded_ends(module: nn.Module) -> tuple[float, float]:
    """Beyond which values this activation is saturated; (−inf, inf) if it has no ends."""
    ends = _ENDS.get(type(module))
    if ends is None and isinstance(module, nn.Hardtanh) and not isinstance(module, nn.ReLU6):
        ends = (float(module.min_val), float(module.max_val))
    if ends is None:
        return -np.inf, np.inf
    margin = END_SHARE * (ends[1] - ends[0])
    return ends[0] + margin, ends[1] - margin


@dataclass(slots=True)
class UnitSnapshot:
    """The counters of all layers at a step."""

    counts: Tensor
    totals: Tensor
    starts: NDArray[np.intp]
    lines: NDArray[np.intp]
    rows: NDArray[np.float64]

    def shares(self) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Lines for which enough was seen, and which shares of their units are dead and dormant.

        A layer whose units are all silent has none that is more silent than others: its dormant
        share is NaN, and its dead share 1.
        """
        counts, totals = self.counts.cpu().numpy(), self.totals.cpu().numpy()
        units = np.diff(self.starts, append=len(counts))
        dead = counts < np.repeat(DEAD_SHARE * self.rows, units)
        with np.errstate(invalid="ignore"):
            means = np.add.reduceat(totals.astype(np.float64), self.starts) / units
            dormant = totals <= np.repeat(DORMANT_SHARE * means, units)
        # Widened first: reduceat casts by the spoonful.
        both = np.stack([dead, dormant]).astype(np.float64)
        share = np.add.reduceat(both, self.starts, axis=1) / units
        share[1, ~(means > 0)] = np.nan
        enough = self.rows >= MIN_ROWS
        return self.lines[enough], share[:, enough]


class UnitCounters:
    """Counters of the layers whose units can die; two windows that take turns."""

    def __init__(self) -> None:
        self._layers: dict[int, Layer] = {}
        self._trays: dict[device, list[Tray]] = {}
        self._names: dict[int, str] = {}
        self._starts = self._lines = np.zeros(0, dtype=np.intp)
        """Of the layers in the order of their trays."""
        self._steps = 0
        self._kept: dict[str, dict[str, Any]] = {}
        """Counters of a checkpoint, for layers that were not seen yet."""
        self._looked: list[Looks] = []
        """Those whose rows are to be added."""

    def state_dict(self) -> dict[str, Any]:
        """The counters by the names of their sites."""
        self._add_rows()
        layers = {self._names[line]: layer.state() for line, layer in self._layers.items()}
        return {"steps": self._steps, "layers": {**self._kept, **layers}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting where that state ended."""
        self._add_rows()
        self._steps = int(state["steps"])
        self._kept = dict(state["layers"])
        for line, layer in self._layers.items():
            layer.restore(self._kept.pop(self._names[line], None))

    def of(
        self, line: int, tensor: Tensor, floor: float, name: str, most: int = ROWS
    ) -> Activity | None:
        """What to count in a tensor of this shape; None where it has no units, or other ones.

        About `most` of its rows are looked at.
        """
        if tensor.dim() == 0 or tensor.numel() == 0:
            return None
        units, inner = shape_of_units(tensor)
        layer = self._layers.get(line)
        if layer is None:
            layer = self._layers[line] = self._tray(tensor.device, units).layer(line, units)
            self._names[line] = name
            layer.restore(self._kept.pop(name, None))
        if len(layer.counts) != units or layer.counts.device != tensor.device:
            return None
        rows = tensor.numel() // units
        step = max(1, rows // most) | 1  # odd: walks through all positions of an image
        return Activity(
            units, inner, step, floor, layer.counts, line, -(-rows // step), layer.totals
        )

    def _tray(self, device: device, units: int) -> Tray:
        """One with room for so many more; each is twice as large as the one before."""
        trays = self._trays.setdefault(device, [])
        if not trays or trays[-1].room < units:
            size = 2 * trays[-1].size if trays else FIRST_TRAY
            trays.append(Tray(device, max(size, units)))
        return trays[-1]

    def looks_at(self, activities: Iterable[Activity]) -> Looks:
        """The layers, and how many of their rows are looked at each time."""
        return Looks([(self._layers[activity.line], activity.rows) for activity in activities])

    def look(self, looks: Looks) -> None:
        """These layers are looked at once more. Their rows are added when somebody asks."""
        if not looks.times:
            self._looked.append(looks)
        looks.times += 1

    def _add_rows(self) -> None:
        for looks in self._looked:
            for layer, rows in looks.layers:
                layer.rows += looks.times * rows
            looks.times = 0
        self._looked.clear()

    def snapshot(self) -> UnitSnapshot | None:
        """The counts of both windows together when they are due, and the turn of the window."""
        if not self._layers:
            return None
        self._steps += 1
        due = self._steps % MIN_STEPS == 0
        if not due and self._steps < WINDOW:
            return None
        self._add_rows()
        trays = list(chain(*self._trays.values()))
        out = None
        if due:
            layers = [layer for tray in trays for layer in tray.layers]
            if len(layers) != len(self._lines):
                sizes = [len(layer.counts) for layer in layers]
                self._starts = np.array([0, *accumulate(sizes[:-1])], dtype=np.intp)
                self._lines = np.array([layer.line for layer in layers], dtype=np.intp)
            out = UnitSnapshot(
                counts=joined([tray.counts for tray in trays]),
                totals=joined([tray.totals for tray in trays]),
                starts=self._starts,
                lines=self._lines,
                rows=np.array([float(layer.rows + layer.rows_before) for layer in layers]),
            )
        if self._steps >= WINDOW:
            self._steps = 0
            for tray in trays:
                tray.turn()
        return out


def joined(windows: Sequence[Tensor]) -> Tensor:
    """Both windows together, of all trays, on the first one's device."""
    sums = [both.sum(0, dtype=both.dtype) for both in windows]
    return sums[0] if len(sums) == 1 else torch_cat([one.to(sums[0].device) for one in sums])


@dataclass(slots=True)
class Looks:
    """Layers that are looked at together, with the rows of each, and how often they were."""

    layers: list[tuple[Layer, int]]
    times: int = 0


def shape_of_units(tensor: Tensor) -> tuple[int, int]:
    """(units, inner): channels of an image batch (4-D and up), else the last dimension."""
    if tensor.dim() >= 4:
        return tensor.shape[1], tensor[0, 0].numel()
    return tensor.shape[-1], 1
