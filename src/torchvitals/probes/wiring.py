"""Whether gradients arrive, and whether they are those of this step alone.

    gradient/<parameter>/missing              1: it requires a gradient and has none at the step
    gradient/[root module]/num_backward       backward passes since the last step
    gradient/[root module]/stale              1: gradients of the step before were still there

Gradients are stale when no backward pass of the step began with cleared ones (None, or zero); a few
elements of a few parameters of each optimizer are looked at. Nothing is stored of backward passes
as long as none was seen: `torch.autograd.grad` is not one. With several optimizers only those that
stepped count.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from torchvitals.probes.backward import BackwardCatcher
from torchvitals.probes.probe import Distributions, Notes, blank
from torchvitals.probes.spread import slices
from torchvitals.probes.stepping import Stepping
from torchvitals.probes.tree import Tree
from torchvitals.record import ROOT, Key
from torchvitals.stats.shards import local

LOOKED_AT = 4
"""Parameters of an optimizer whose gradients are looked at when backward begins."""
ELEMENTS = 1024
"""Elements of each."""


@dataclass(slots=True)
class WiringRaw:
    """What one step found."""

    without: list[int] = field(default_factory=list)
    """Lines without a gradient."""
    checked: set[int] | None = None
    """Lines that were looked at; None: all."""
    num_backward: int | None = None
    left: list[Any] | None = None
    """Of each optimizer that stepped, of each backward pass: whether gradients were left."""


class Wiring:
    """Looks for gradients before each step, and for old ones when backward begins."""

    name = "wiring"

    def __init__(self, tree: Tree, chosen: Sequence[int], optimizers: Sequence[Optimizer]) -> None:
        sites = [tree.parameters[index] for index in chosen]
        self._parameters: list[Tensor] = [site.parameter for site in sites]
        self._line = {id(site.parameter): line for line, site in enumerate(sites)}
        self._held = [
            [p for group in optimizer.param_groups for p in group["params"]]
            for optimizer in optimizers
        ] or [self._parameters]
        known = {id(p) for held in self._held for p in held}
        self._orphans = [line for line, p in enumerate(self._parameters) if id(p) not in known]
        self._looked_at = [_some([p for p in held if id(p) in self._line]) for held in self._held]
        self.header = (
            *(Key("gradient", site.name, "missing") for site in sites),
            Key("gradient", ROOT, "num_backward"),
            Key("gradient", ROOT, "stale"),
        )
        self._backward = BackwardCatcher(self._begins, _nothing)
        self._open = False
        self._ever = False
        self._spent = 0.0
        self._failed: Exception | None = None
        self._begin_step()

    def _begin_step(self) -> None:
        self._raw = WiringRaw()
        self._stepped: set[int] = set()
        self._num_backward = 0
        self._left: list[list[Any]] = [[] for _ in self._held]

    def open(self) -> None:
        """Start seeing backward passes."""
        if not self._open:
            self._open = self._backward.on = True
            self._backward.install()

    def close(self) -> None:
        """Stop seeing them; what was seen of a step that is not taken is forgotten."""
        if self._open:
            self._open = False
            self._backward.remove()
            self._begin_step()

    def _begins(self) -> None:
        begun = perf_counter()
        self._num_backward += 1
        try:
            for left, parameters in zip(self._left, self._looked_at, strict=True):
                # Once seen cleared, what is there later is this step's own.
                if not left or left[-1] is not False:
                    left.append(_any_left(parameters))
        except Exception as error:  # told where somebody listens: at the step's end
            self._failed = error
        self._spent += perf_counter() - begun

    def before_step(self, number: int, step: Stepping) -> None:
        """Look which parameters of an optimizer have no gradient."""
        self._stepped.add(number)
        if step.whole:
            return
        for parameter, grad in zip(step.parameters, step.grads, strict=True):
            line = self._line.get(id(parameter))
            if line is not None and grad is None and parameter.requires_grad:
                self._raw.without.append(line)

    def forget(self) -> None:
        """A closure runs again: its gradients are the newer ones."""
        self._raw.without = []

    def take(self) -> WiringRaw:
        """What this step found; the next one starts afresh."""
        raw, failed = self._raw, self._failed
        for line in self._orphans:
            parameter = self._parameters[line]
            if parameter.grad is None and parameter.requires_grad:
                raw.without.append(line)
        if len(self._stepped) < len(self._held):
            stepped = [p for number in self._stepped for p in self._held[number]]
            lines = {self._line[id(p)] for p in stepped if id(p) in self._line}
            raw.checked = lines | set(self._orphans)
        if self._open:
            self._ever = self._ever or self._num_backward > 0
            if self._ever:
                raw.num_backward = self._num_backward
            raw.left = [self._left[number] for number in self._stepped]
        self._failed = None
        self._begin_step()
        if failed is not None:
            raise failed
        return raw

    def take_bins(self) -> Distributions:
        """None: it has no distributions."""
        return []

    def take_spent(self) -> float:
        """Seconds spent where backward begins since the last time this was asked."""
        spent, self._spent = self._spent, 0.0
        return spent

    def shape(self, _raw: WiringRaw) -> Hashable:
        """All steps are alike."""
        return ()

    def values(self, raws: Sequence[WiringRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        table = blank((len(raws), len(self.header)))
        for row, raw in zip(table, raws, strict=True):
            row[slice(-2) if raw.checked is None else sorted(raw.checked)] = 0.0
            row[raw.without] = 1.0
            if raw.num_backward is not None:
                row[-2] = raw.num_backward
            left = [marks for marks in raw.left or () if marks]
            if left:
                row[-1] = any(all(map(_is_left, marks)) for marks in left)
        return table


def _some(parameters: list[Tensor]) -> list[Tensor]:
    """A few of them, the first and the last among these."""
    if len(parameters) <= LOOKED_AT:
        return parameters
    last = len(parameters) - 1
    return [parameters[last * k // (LOOKED_AT - 1)] for k in range(LOOKED_AT)]


def _any_left(parameters: Sequence[Tensor]) -> Any:
    """False when all gradients are None; else whether any is not zero, as a tensor a device."""
    held = (local(p.grad) for p in parameters)
    grads = [g for g in held if g is not None and g.layout is torch.strided and g.numel()]
    if not grads:
        return False
    with torch.no_grad():
        found = [g[slices(tuple(g.shape), ELEMENTS)].any() for g in grads]
    if all(g.is_cpu for g in found):
        return any(map(bool, found))
    return found


def _is_left(mark: Any) -> bool:
    return any(map(bool, mark)) if isinstance(mark, list) else bool(mark)


def _nothing() -> None:
    """What is done when backward ends."""
