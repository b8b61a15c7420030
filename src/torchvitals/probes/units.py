"""Units of a layer that never fire or hardly do, and activations stuck at their ends.

A unit is dead when it is active in fewer than 1 % of the rows seen over many batches, not when it
is silent in one: 70 % zeros after a ReLU are normal. It is dormant when its mean magnitude is at
most 2.5 % of the mean over the layer's units. Two counters a unit, over a window that moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn, zeros
from torch import cat as torch_cat
from torch import float32 as torch_float32
from torch import int32 as torch_int32
from torch import stack as torch_stack

from torchvitals.stats.backend import Activity

ROWS = 64
"""Rows of a batch looked at."""
WINDOW = 32
"""Monitored steps after which the older half of the counts is dropped."""
MIN_STEPS = 8
"""Dead units are counted once in that many monitored steps."""
MIN_ROWS = 256
"""Rows that must have been seen before a unit can be called dead."""
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
        self._names: dict[int, str] = {}
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

    def of(self, line: int, tensor: Tensor, floor: float, name: str) -> Activity | None:
        """What to count in a tensor of this shape; None where it has no units, or other ones."""
        if tensor.dim() == 0 or tensor.numel() == 0:
            return None
        units, inner = shape_of_units(tensor)
        layer = self._layers.get(line)
        if layer is None:
            counts = zeros(units, dtype=torch_int32, device=tensor.device)
            totals = zeros(units, dtype=torch_float32, device=tensor.device)
            layer = self._layers[line] = Layer(line, counts, counts.clone(), totals, totals.clone())
            self._names[line] = name
            layer.restore(self._kept.pop(name, None))
        if len(layer.counts) != units or layer.counts.device != tensor.device:
            return None
        rows = tensor.numel() // units
        step = max(1, rows // ROWS) | 1  # odd: walks through all positions of an image
        return Activity(
            units, inner, step, floor, layer.counts, line, -(-rows // step), layer.totals
        )

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
        layers = list(self._layers.values())
        device = layers[0].counts.device
        out = None
        if due:
            now = torch_cat([layer.counts.to(device) for layer in layers])
            now += torch_cat([layer.before.to(device) for layer in layers])
            totals = torch_cat([layer.totals.to(device) for layer in layers])
            totals += torch_cat([layer.totals_before.to(device) for layer in layers])
            sizes = np.array([len(layer.counts) for layer in layers], dtype=np.intp)
            out = UnitSnapshot(
                counts=now,
                totals=totals,
                starts=np.cumsum(sizes) - sizes,
                lines=np.array([layer.line for layer in layers], dtype=np.intp),
                rows=np.array([float(layer.rows + layer.rows_before) for layer in layers]),
            )
        if self._steps >= WINDOW:
            self._steps = 0
            for layer in layers:
                layer.turn()
        return out


@dataclass(slots=True)
class Looks:
    """Layers that are looked at together, with the rows of each, and how often they were."""

    layers: list[tuple[Layer, int]]
    times: int = 0


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
            "counts": torch_stack([self.counts, self.before]).cpu(),
            "totals": torch_stack([self.totals, self.totals_before]).cpu(),
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

    def turn(self) -> None:
        """Begin a new window."""
        self.before.copy_(self.counts)
        self.counts.zero_()
        self.totals_before.copy_(self.totals)
        self.totals.zero_()
        self.rows_before, self.rows = self.rows, 0


def shape_of_units(tensor: Tensor) -> tuple[int, int]:
    """(units, inner): channels of an image batch (4-D and up), else the last dimension."""
    if tensor.dim() >= 4:
        return tensor.shape[1], tensor[0, 0].numel()
    return tensor.shape[-1], 1
