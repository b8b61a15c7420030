"""The optimizer: learning rate and weight decay of each group, and the health of Adam's moments.

    optimizer/<group>/lr, weight_decay
    optimizer/<parameter>/g2_over_v_rms     √mean(g² / max(v̂, ε²)); above ~2.3 v lags behind
    optimizer/<parameter>/sqrt_v_over_eps   median of √v̂ / ε; below ~10 ε rules the step size

The moments are looked at in a sample of each tensor.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from torchvitals.probes.probe import Histograms, Notes, blank, to_float32
from torchvitals.probes.tree import Tree
from torchvitals.record import Key
from torchvitals.stats.sample import Plan

SAMPLE_SIZE = 256
MEDIAN_OF = 63
GROUP_STATS = ("lr", "weight_decay")
MOMENT_STATS = ("g2_over_v_rms", "sqrt_v_over_eps")


@dataclass(slots=True)
class Moments:
    """Samples of g and v of some lines, flat, with what is needed to read them."""

    lines: list[int]
    starts: NDArray[np.intp]
    gradients: Tensor
    squares: Tensor
    steps: list[Any]
    beta2: NDArray[np.float64]
    eps: NDArray[np.float64]


@dataclass(slots=True)
class OptimizerRaw:
    """What was read of each optimizer that stepped."""

    groups: list[tuple[int, list[Any]]]
    moments: list[Moments]


class OptimizerState:
    """Reads the groups' numbers and samples the second moments of Adam-like optimizers."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        tree: Tree,
        chosen: Sequence[int],
        *,
        moments: bool,
    ) -> None:
        self._optimizers = list(optimizers)
        sites = [tree.parameters[index] for index in chosen]
        self._line = {id(site.parameter): line for line, site in enumerate(sites)}
        self._names = [site.name for site in sites]
        self._moments = moments
        self._plan = Plan(self._names, [site.parameter for site in sites], SAMPLE_SIZE)
        self._rooms: dict[int, Rooms] = {}
        self._first_group: list[int] = []
        groups: list[str] = []
        for number, optimizer in enumerate(self._optimizers):
            self._first_group.append(len(groups))
            prefix = f"optimizer{number}." if len(self._optimizers) > 1 else ""
            groups += [f"{prefix}group{k}" for k in range(len(optimizer.param_groups))]
        self._num_groups = len(groups)
        with_moments = {
            id(parameter)
            for optimizer in self._optimizers
            if moments and _is_adam(optimizer)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self._adam = [k for k, site in enumerate(sites) if id(site.parameter) in with_moments]
        self._place = {line: place for place, line in enumerate(self._adam)}
        self.header = (
            *(Key("optimizer", group, stat) for group in groups for stat in GROUP_STATS),
            *(Key("optimizer", self._names[k], stat) for k in self._adam for stat in MOMENT_STATS),
        )
        self._raw = OptimizerRaw([], [])

    def after_step(self, number: int) -> None:
        """Read the optimizer that has just stepped."""
        optimizer = self._optimizers[number]
        known = [
            [group.get(stat) for stat in GROUP_STATS]
            for group in optimizer.param_groups[: self._groups_of(number)]
        ]
        self._raw.groups.append((self._first_group[number], [v for vs in known for v in vs]))
        if self._adam and _is_adam(optimizer):
            sampled = self._sample(number, optimizer)
            if sampled is not None:
                self._raw.moments.append(sampled)

    def take(self) -> OptimizerRaw:
        """What this step read; the next one starts afresh."""
        raw, self._raw = self._raw, OptimizerRaw([], [])
        return raw

    def _groups_of(self, number: int) -> int:
        ends = [*self._first_group[1:], self._num_groups]
        return ends[number] - self._first_group[number]

    def _sample(self, number: int, optimizer: Optimizer) -> Moments | None:
        lines, grads, squares, steps, beta2, eps = [], [], [], [], [], []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                line = self._line.get(id(parameter))
                state = optimizer.state.get(parameter)
                grad = parameter.grad
                if line not in self._place or not state or grad is None:
                    continue
                square = state.get("exp_avg_sq")
                if square is None or grad.layout is not torch.strided:
                    continue
                lines.append(line)
                grads.append(grad)
                squares.append(square)
                steps.append(state.get("step", 1))
                beta2.append(group["betas"][1])
                eps.append(group["eps"])
        if not lines:
            return None
        rooms = self._rooms.get(number)
        if rooms is None or rooms.lines != lines:
            rooms = self._rooms[number] = Rooms(lines, self._plan, grads[0].device)
        rooms.plan.fetch(grads, rooms.gradients)
        rooms.plan.fetch(squares, rooms.squares)
        return Moments(
            lines,
            rooms.starts,
            rooms.flat_gradients.clone(),
            rooms.flat_squares.clone(),
            [float(t) if not isinstance(t, Tensor) or t.is_cpu else t.clone() for t in steps],
            np.array(beta2),
            np.array(eps),
        )

    def shape(self, raw: OptimizerRaw) -> Hashable:
        """Which optimizers stepped and which moments were sampled."""
        return (
            tuple((first, len(numbers)) for first, numbers in raw.groups),
            tuple((tuple(m.lines), m.starts.tobytes()) for m in raw.moments),
        )

    def values(self, raws: Sequence[OptimizerRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        groups = blank((len(raws), self._num_groups * len(GROUP_STATS)))
        for row, raw in zip(groups, raws, strict=True):
            for first, numbers in raw.groups:
                for place, number in enumerate(numbers, start=first * len(GROUP_STATS)):
                    if number is not None:
                        row[place] = float(number)
        table = blank((len(raws), len(self._adam), len(MOMENT_STATS)))
        for moments in zip(*(raw.moments for raw in raws), strict=True):
            places = [self._place[line] for line in moments[0].lines]
            table[:, places] = to_float32(health(moments))
        return np.concatenate([groups, table.reshape(len(raws), -1)], axis=1)

    def histograms(self, _raws: Sequence[OptimizerRaw]) -> Histograms | None:
        """None: it has no distributions."""
        return None


class Rooms:
    """Buffers for one optimizer's samples: two flat tensors and a view of each line's part."""

    def __init__(self, lines: list[int], plan: Plan, device: torch.device) -> None:
        self.lines = lines
        self.plan = plan.only(lines)
        sizes = self.plan.sizes
        self.starts: NDArray[np.intp] = np.cumsum(sizes, dtype=np.intp) - np.array(sizes)
        self.flat_gradients = torch.empty(sum(sizes), device=device)
        self.flat_squares = torch.empty(sum(sizes), device=device)
        self.gradients = list(torch.split(self.flat_gradients, sizes))
        self.squares = list(torch.split(self.flat_squares, sizes))


def health(moments: Sequence[Moments]) -> NDArray[np.float64]:
    """(steps, lines, `MOMENT_STATS`) of samples of equal shape."""
    first = moments[0]
    g = np.stack([m.gradients.cpu().numpy() for m in moments])
    v = np.stack([m.squares.cpu().numpy() for m in moments])
    sizes = np.diff(first.starts, append=g.shape[1])
    steps = np.array([[float(step) for step in m.steps] for m in moments])
    beta2, eps = (np.stack([getattr(m, name) for m in moments]) for name in ("beta2", "eps"))
    with np.errstate(all="ignore"):
        correction = (1.0 / (1.0 - beta2**steps)).astype(np.float32)
        corrected = v * np.repeat(correction, sizes, axis=1)
        floor = np.repeat((eps**2).astype(np.float32), sizes, axis=1)
        ratio = np.add.reduceat(g * g / np.maximum(corrected, floor), first.starts, axis=1) / sizes
        # The median over evenly spaced elements: one sort for all lines instead of one each.
        spread = np.linspace(0.0, 1.0, MEDIAN_OF)
        places = first.starts[:, None] + np.rint(spread * (sizes[:, None] - 1)).astype(np.intp)
        middle = np.partition(corrected[:, places], MEDIAN_OF // 2, axis=-1)[..., MEDIAN_OF // 2]
        return np.stack([np.sqrt(ratio), np.sqrt(middle) / eps], axis=-1)


def _is_adam(optimizer: Optimizer) -> bool:
    group = optimizer.param_groups[0]
    return "betas" in group and "eps" in group and len(group["betas"]) == 2
