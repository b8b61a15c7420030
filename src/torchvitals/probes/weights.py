"""Weights as matrices: rows that are twins, and how many directions a weight still has.

    parameter/<parameter>/twin_frac      share of rows (output units) equal to another row, once,
                                         after the first monitored step: units that began alike and
                                         are still alike after a step stay so
    parameter/<parameter>/stable_rank    ‖W‖_F² / σ₁², between 1 and the smaller side, of each
                                         matrix once in 100 steps, or less often of many: they take
                                         turns, one in 20 steps

σ₁ comes from a few power iterations that begin with a fixed vector and go on from the last one. It
is never too large, and a few per cent too small where singular values lie close together.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.probes.probe import Distributions, Notes
from torchvitals.probes.sheet import Sheet
from torchvitals.probes.spread import sample_rows
from torchvitals.probes.tree import Tree
from torchvitals.record import Key
from torchvitals.stats.shards import is_dtensor

MAX_ROWS = 4096
ELEMENTS = 16
"""Elements of a row that are compared, evenly spaced."""
MAX_ELEMENTS = 1 << 25
"""Of a matrix whose rank is measured."""
SPACING = 20
"""Steps between two matrices, which take turns: one costs some fifty small operators."""
PERIOD = 100
"""Steps between two measurements of a matrix, at least."""
ITERATIONS = 6
MORE_ITERATIONS = 3
"""From where the last measurement ended."""


@dataclass(slots=True)
class WeightsRaw:
    """What was kept of some weights in one step."""

    rows: list[tuple[int, Tensor]] = field(default_factory=list)
    """A few elements of each row of a line's weight."""
    ranks: list[tuple[int, Tensor]] = field(default_factory=list)


class Weights:
    """Looks at the chosen parameters at the end of a monitored step."""

    def __init__(self, tree: Tree, chosen: Sequence[int], every: int = 1) -> None:
        sites = [tree.parameters[index] for index in chosen]
        self._names = [site.name for site in sites]
        self._tensors: list[Tensor] = [site.parameter for site in sites]
        self._matrices = [
            line
            for line, t in enumerate(self._tensors)
            if not is_dtensor(t) and t.dim() == 2 and min(t.shape) > 1 and t.numel() <= MAX_ELEMENTS
        ]
        self._with_rows = [
            line
            for line, t in enumerate(self._tensors)
            if not is_dtensor(t) and t.dim() > 1 and 1 < t.shape[0] <= MAX_ROWS and t.numel()
        ]
        self._directions: dict[int, Tensor] = {}
        self._turn = 0
        self._spacing = -(-SPACING // every)
        """Monitored steps from one matrix to the next."""
        self._period = max(-(-PERIOD // every), self._spacing * len(self._matrices))
        self._sheet = Sheet(
            Key("parameter", self._names[line], stat)
            for lines, stat in ((self._with_rows, "twin_frac"), (self._matrices, "stable_rank"))
            for line in lines
        )

    @property
    def header(self) -> tuple[Key, ...]:
        """Its columns."""
        return self._sheet.header

    def take(self) -> WeightsRaw:
        """Look at the weights whose turn it is."""
        raw, line = WeightsRaw(), self._whose_turn()
        if line is not None or self._turn == 0:
            with torch.no_grad():
                if self._turn == 0:
                    raw.rows = [
                        (line, sample_rows(self._tensors[line], MAX_ROWS, ELEMENTS))
                        for line in self._with_rows
                    ]
                if line is not None:
                    raw.ranks.append((line, self._stable_rank(line)))
        self._turn += 1
        return raw

    def _whose_turn(self) -> int | None:
        """One after another, from the first step on."""
        number, rest = divmod(self._turn % self._period, self._spacing)
        return None if rest or number >= len(self._matrices) else self._matrices[number]

    def _stable_rank(self, line: int) -> Tensor:
        """‖W‖² / σ₁², where the weight is."""
        w = self._tensors[line].detach()
        w = w.to(torch.promote_types(w.dtype, torch.float32))
        v, iterations = self._directions.get(line), MORE_ITERATIONS
        if v is None or v.device != w.device or v.dtype != w.dtype:
            v, iterations = torch.from_numpy(_start(w.shape[1])).to(w), ITERATIONS
        upright = w.t()
        for _ in range(iterations):
            v = torch.mv(upright, torch.mv(w, v))
            v /= torch.linalg.vector_norm(v)
        top = torch.linalg.vector_norm(torch.mv(w, v))
        self._directions[line] = v
        rank: Tensor = (torch.linalg.vector_norm(w) / top) ** 2
        return rank

    def state_dict(self) -> dict[str, Any]:
        """Whose turn it is, and where each matrix's iteration stands."""
        names = self._names
        directions = {names[line]: v.cpu() for line, v in self._directions.items()}
        return {"turn": self._turn, "directions": directions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where that state ended."""
        self._turn = int(state["turn"])
        line_of = {name: line for line, name in enumerate(self._names)}
        for name, v in state["directions"].items():
            if name in line_of and self._tensors[line_of[name]].shape[-1] == len(v):
                self._directions[line_of[name]] = v.to(self._tensors[line_of[name]].device)

    def take_bins(self) -> Distributions:
        """None: it has no distributions."""
        return []

    def shape(self, _raw: WeightsRaw) -> Hashable:
        """Steps are read one by one."""
        return ()

    def values(self, raws: Sequence[WeightsRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        return self._sheet.rows([self._columns(raw) for raw in raws])

    def _columns(self, raw: WeightsRaw) -> dict[Key, float]:
        columns = {
            Key("parameter", self._names[line], "twin_frac"): twin_frac(rows)
            for line, rows in raw.rows
        }
        for line, rank in raw.ranks:
            columns[Key("parameter", self._names[line], "stable_rank")] = float(rank)
        return columns


def twin_frac(rows: Tensor) -> float:
    """Share of the rows that are equal to another one."""
    if rows.is_complex():
        rows = torch.view_as_real(rows.resolve_conj())
    flat = rows.cpu().reshape(len(rows), -1).double().numpy()
    _, counts = np.unique(flat, axis=0, return_counts=True)
    return float(counts[counts > 1].sum() / len(flat))


@lru_cache(maxsize=16)
def _start(size: int) -> NDArray[np.float64]:
    """Where the first iteration begins: the same for every matrix of that width."""
    found = np.random.default_rng(size).standard_normal(size)
    return np.asarray(found / np.linalg.norm(found))
