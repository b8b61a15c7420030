"""`Snapshots`: the last good states, in memory, and the way back to one of them.

Kept are parameters, buffers, the optimizers' state and settings, and where given the schedulers'
and the random generators' state. Going back writes into the tensors that are there, so that
captured graphs and other references stay right. Memory: `keep` × (parameters + optimizer state).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchvitals.stats.shards import local


@dataclass(slots=True)
class Snapshot:
    """One state."""

    step: int
    tensors: list[Tensor]
    """Copies of parameters and buffers."""
    states: list[list[dict[str, Any]]] = field(default_factory=list)
    """Of each optimizer, of each of its parameters."""
    groups: list[list[dict[str, Any]]] = field(default_factory=list)
    schedulers: list[Any] = field(default_factory=list)
    rng: dict[str, Any] | None = None
    used: int = 0
    """How often it was gone back to."""


class Snapshots:
    """Keeps a few; the oldest makes room."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        models: Sequence[nn.Module],
        schedulers: Sequence[Any],
        *,
        every: int,
        keep: int,
        rng: bool,
        device: str | None,
    ) -> None:
        self._optimizers, self._models, self._schedulers = optimizers, models, schedulers
        self._every, self._keep, self._rng, self._device = every, keep, rng, device
        self._kept: list[Snapshot] = []
        self._next = 0

    def due(self, step: int) -> bool:
        """Whether one should be taken now."""
        return step >= self._next

    @property
    def steps(self) -> list[int]:
        """When those kept were taken."""
        return [one.step for one in self._kept]

    def take(self, step: int) -> None:
        """Keep the state before this step's update."""
        self._next = step + self._every
        live = list(self._live())
        old = self._kept.pop(0) if len(self._kept) >= self._keep else None
        if old is not None and _alike(old.tensors, live):
            torch._foreach_copy_(old.tensors, live)
            kept = old.tensors
        else:
            kept = [self._copy(tensor) for tensor in live]
        states, groups = [], []
        for optimizer in self._optimizers:
            params = _parameters(optimizer)
            states.append([self._copy(dict(optimizer.state.get(p, {}))) for p in params])
            groups.append([self._copy(_settings(group)) for group in optimizer.param_groups])
        self._kept.append(
            Snapshot(
                step,
                kept,
                states,
                groups,
                [copy.deepcopy(one.state_dict()) for one in self._schedulers],
                _rng_state() if self._rng else None,
            )
        )

    def choose(self, now: int, age: int) -> Snapshot | None:
        """The newest that is at least that old and was not tried yet; else the oldest one kept."""
        old = [one for one in self._kept if now - one.step >= age]
        fresh = [one for one in old if not one.used]
        if fresh:
            return fresh[-1]
        return (old or self._kept)[0] if self._kept else None

    def restore(self, snapshot: Snapshot, now: int, lr_factor: float) -> None:
        """Make everything what it was; later states are dropped."""
        snapshot.used += 1
        self._kept = [one for one in self._kept if one.step <= snapshot.step]
        self._next = now + self._every
        live = list(self._live())
        torch._foreach_copy_(live, snapshot.tensors)
        for optimizer, states, groups in zip(
            self._optimizers, snapshot.states, snapshot.groups, strict=True
        ):
            for parameter, state in zip(_parameters(optimizer), states, strict=True):
                if state or parameter in optimizer.state:
                    _write(optimizer.state[parameter], state)
                if not state:
                    optimizer.state.pop(parameter, None)
            for group, settings in zip(optimizer.param_groups, groups, strict=True):
                _write(group, settings, keep=("params",))
        for scheduler, state in zip(self._schedulers, snapshot.schedulers, strict=True):
            scheduler.load_state_dict(copy.deepcopy(state))
        if lr_factor != 1.0:
            self._scale_rates(lr_factor)
        if snapshot.rng is not None:
            _set_rng_state(snapshot.rng)

    def _scale_rates(self, factor: float) -> None:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for name in ("lr", "initial_lr"):
                    if isinstance(group.get(name), Tensor):
                        group[name].mul_(factor)
                    elif name in group:
                        group[name] *= factor
        for scheduler in self._schedulers:
            for one in _with_children(scheduler):
                if hasattr(one, "base_lrs"):
                    one.base_lrs = [rate * factor for rate in one.base_lrs]

    def _live(self) -> Iterator[Tensor]:
        seen: set[int] = set()
        for tensor in (
            *(p for optimizer in self._optimizers for p in _parameters(optimizer)),
            *(p for model in self._models for p in model.parameters()),
            *(b for model in self._models for b in model.buffers()),
        ):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield local(tensor.detach())

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            taken = value.detach()
            # A step counter on the CPU stays there; copies are ours in any case.
            if self._device is not None and taken.device.type != self._device:
                return taken.to(self._device, copy=True)
            return taken.clone()
        if isinstance(value, dict):
            return {name: self._copy(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._copy(one) for one in value]
        return copy.deepcopy(value)


def _alike(kept: Sequence[Tensor], live: Sequence[Tensor]) -> bool:
    return len(kept) == len(live) and all(
        a.shape == b.shape and a.dtype is b.dtype for a, b in zip(kept, live, strict=True)
    )


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _write(now: dict[str, Any], kept: dict[str, Any], keep: tuple[str, ...] = ()) -> None:
    """Make a dict of tensors and settings what it was, into the tensors that are there."""
    for name in [name for name in now if name not in kept and name not in keep]:
        del now[name]
    for name, value in kept.items():
        current = now.get(name)
        if isinstance(value, Tensor):
            if isinstance(current, Tensor) and current.shape == value.shape:
                current.copy_(value)
            else:
                now[name] = value.clone()
        else:
            now[name] = copy.deepcopy(value)


def _with_children(scheduler: Any) -> Iterator[Any]:
    yield scheduler
    for child in getattr(scheduler, "_schedulers", ()):
        yield from _with_children(child)


def _rng_state() -> dict[str, Any]:
    state = {
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def _set_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
