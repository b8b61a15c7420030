"""The optimizer: learning rate and weight decay of each group, and the health of Adam's moments.

    optimizer/<group>/lr, weight_decay
    optimizer/<parameter>/g2_over_v_rms     √mean(g² / max(v̂, ε²)); above ~2.3 v lags behind
    optimizer/<parameter>/sqrt_v_over_eps   median of √v̂ / ε; below ~10 ε rules the step size

The moments are looked at in a sample of each tensor, in one of four monitored steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from torchvitals.probes.probe import Distributions, Notes, blank, to_float32
from torchvitals.probes.stepping import Stepping
from torchvitals.probes.tree import Tree
from torchvitals.record import Key
from torchvitals.stats.sample import Plan, prepared
from torchvitals.stats.shards import local, locals_of

SAMPLE_SIZE = 128
MOMENTS_EVERY = 4
"""Moments are looked at in the first of that many monitored steps: they change slowly."""
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
    """(number of the optimizer, the numbers of its groups one after the other)."""
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
        self._plan = Plan(self._names, locals_of([site.parameter for site in sites]), SAMPLE_SIZE)
        self._rooms: dict[int, Rooms] = {}
        self.header: tuple[Key, ...] = ()
        self._group_places: list[list[int]] = [[] for _ in self._optimizers]
        self._moment_places: dict[int, int] = {}
        for number, optimizer in enumerate(self._optimizers):
            self._join_groups(number, len(optimizer.param_groups))
        with_moments = {
            id(parameter)
            for optimizer in self._optimizers
            if moments and _is_adam(optimizer)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        self._moments = bool(with_moments)
        self._join_lines(k for k, site in enumerate(sites) if id(site.parameter) in with_moments)
        self._raw = OptimizerRaw([], [])
        self._seen = [0] * len(self._optimizers)

    def state_dict(self) -> dict[str, list[int]]:
        """How many steps of each optimizer were seen: moments are sampled at some of them."""
        return {"seen": list(self._seen)}

    def load_state_dict(self, state: Mapping[str, list[int]]) -> None:
        """Go on where that state ended."""
        if len(state["seen"]) == len(self._seen):
            self._seen = list(state["seen"])

    def adopt(self, number: int, optimizer: Optimizer) -> None:
        """Read another optimizer in the place of that one."""
        self._optimizers[number] = optimizer
        self._rooms.pop(number, None)

    def after_step(self, number: int, step: Stepping) -> None:
        """Read the optimizer that has just stepped."""
        optimizer = self._optimizers[number]
        numbers = [group.get(stat) for group in optimizer.param_groups for stat in GROUP_STATS]
        self._raw.groups.append((number, numbers))
        self._seen[number] += 1
        if self._moments and _is_adam(optimizer) and self._seen[number] % MOMENTS_EVERY == 1:
            sampled = self._sample(number, optimizer, step)
            if sampled is not None:
                self._raw.moments.append(sampled)

    def take(self) -> OptimizerRaw:
        """What this step read; the next one starts afresh."""
        raw, self._raw = self._raw, OptimizerRaw([], [])
        return raw

    def _join_groups(self, number: int, num: int) -> None:
        """Columns of an optimizer's groups, at first and when some are added."""
        prefix = f"optimizer{number}." if len(self._optimizers) > 1 else ""
        places = self._group_places[number]
        while len(places) < num:
            group = f"{prefix}group{len(places)}"
            places.append(len(self.header))
            self.header = (*self.header, *(Key("optimizer", group, stat) for stat in GROUP_STATS))

    def _join_lines(self, lines: Iterable[int]) -> None:
        """Columns of second moments, at first and when an added group brings more of them."""
        keys: list[Key] = []
        for line in lines:
            if line not in self._moment_places:
                self._moment_places[line] = len(self.header) + len(keys)
                keys += [Key("optimizer", self._names[line], stat) for stat in MOMENT_STATS]
        if keys:
            self.header = (*self.header, *keys)

    def _sample(self, number: int, optimizer: Optimizer, step: Stepping) -> Moments | None:
        rooms = self._rooms.get(number)
        if rooms is None or not rooms.serves(optimizer, step):
            rooms = self._rooms[number] = Rooms(optimizer, step, self._line, self._plan)
        grads = rooms.grads(step)
        if grads is None:  # other parameters have a gradient than last time
            rooms = self._rooms[number] = Rooms(optimizer, step, self._line, self._plan)
            grads = rooms.grads(step)
        if not grads:
            return None
        rooms.plan.fetch(grads, rooms.gradients)
        rooms.plan.fetch(rooms.second, rooms.squares)
        groups = optimizer.param_groups
        return Moments(
            rooms.lines,
            rooms.starts,
            torch.cat(rooms.flat_gradients),
            torch.cat(rooms.flat_squares),
            rooms.num_steps(),
            np.array([groups[k]["betas"][1] for k in rooms.group])[rooms.group_of],
            np.array([groups[k]["eps"] for k in rooms.group])[rooms.group_of],
        )

    def shape(self, raw: OptimizerRaw) -> Hashable:
        """Which optimizers stepped. Moments are not sampled at each, and stack by themselves."""
        return tuple((number, len(numbers)) for number, numbers in raw.groups)

    def values(self, raws: Sequence[OptimizerRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        for raw in raws:
            for number, numbers in raw.groups:
                self._join_groups(number, len(numbers) // len(GROUP_STATS))
            for moments in raw.moments:
                self._join_lines(moments.lines)
        table = blank((len(raws), len(self.header)))
        alike: dict[Hashable, list[tuple[int, Moments]]] = {}
        for row, raw in enumerate(raws):
            for number, numbers in raw.groups:
                for place, value in enumerate(numbers):
                    if value is not None:
                        group, stat = divmod(place, len(GROUP_STATS))
                        table[row, self._group_places[number][group] + stat] = float(value)
            for moments in raw.moments:
                kind = (tuple(moments.lines), moments.starts.tobytes())
                alike.setdefault(kind, []).append((row, moments))
        stats = np.arange(len(MOMENT_STATS))
        for found in alike.values():
            places = np.array([self._moment_places[line] for line in found[0][1].lines])
            rows = np.array([row for row, _ in found])
            columns = places[:, None] + stats
            table[rows[:, None, None], columns] = to_float32(health([m for _, m in found]))
        return table

    def take_bins(self) -> Distributions:
        """None: it has no distributions."""
        return []


class Rooms:
    """Where one optimizer's second moments lie, and buffers for their samples.

    Found once; looked up again when the optimizer's state was replaced (a checkpoint was loaded) or
    other parameters have gradients.
    """

    def __init__(
        self, optimizer: Optimizer, step: Stepping, line_of: dict[int, int], plan: Plan
    ) -> None:
        self._state = optimizer.state
        self._parameters = step.parameters
        self.lines: list[int] = []
        self._places: list[int] = []
        self._steps: list[Any] = []
        second: list[Tensor] = []
        group_of: list[int] = []
        place = -1
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                place += 1
                line, state = line_of.get(id(parameter)), optimizer.state.get(parameter, {})
                grad, square = step.grads[place], local(state.get("exp_avg_sq"))
                if line is None or square is None or grad is None:
                    continue
                if grad.layout is not torch.strided or square.dtype is torch.float64:
                    continue
                if not square.numel():  # an empty piece of a sharded parameter
                    continue
                self.lines.append(line)
                self._places.append(place)
                self._steps.append(state["step"])
                second.append(square)
                group_of.append(number)
        self._num_grads = sum(grad is not None for grad in step.grads)
        self.group = sorted(set(group_of))
        self.group_of = np.searchsorted(self.group, group_of)
        self.plan = plan.only(self.lines)
        self.second = prepared(second)
        sizes = np.array(self.plan.sizes, dtype=np.intp)
        self.starts: NDArray[np.intp] = np.cumsum(sizes) - sizes
        self.flat_gradients, self.gradients = self.plan.flat_room(second)
        self.flat_squares, self.squares = self.plan.flat_room(second)

    def serves(self, optimizer: Optimizer, step: Stepping) -> bool:
        """Whether what was found still holds."""
        return self._state is optimizer.state and self._parameters is step.parameters

    def grads(self, step: Stepping) -> list[Tensor] | None:
        """The gradients of the lines; None when other parameters have one than before."""
        found = [grad for k in self._places if (grad := step.grads[k]) is not None]
        there = sum(grad is not None for grad in step.grads)
        return found if len(found) == len(self._places) and there == self._num_grads else None

    def num_steps(self) -> list[Any]:
        """The step counters of the lines; a device's are copied, to be read later."""
        return [
            t.item() if isinstance(t, Tensor) and t.is_cpu
            else t.clone() if isinstance(t, Tensor)
            else t
            for t in self._steps
        ]  # fmt: skip


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
