"""What the probes are told about an optimizer's step, gathered once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer


@dataclass(slots=True)
class Stepping:
    """An optimizer about to step, or just done."""

    number: int
    """The step."""
    parameters: list[Tensor]
    """All it holds; the same list object as long as they are the same."""
    grads: list[Tensor | None]


class Roster:
    """The parameters of one optimizer, listed anew only when groups changed."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._sizes: list[int] = []
        self._parameters: list[Tensor] = []

    def stepping(self, number: int) -> Stepping:
        """Its parameters and their gradients now."""
        groups = self._optimizer.param_groups
        sizes = [len(group["params"]) for group in groups]
        if sizes != self._sizes:
            self._sizes = sizes
            self._parameters = [p for group in groups for p in group["params"]]
        return Stepping(number, self._parameters, [p.grad for p in self._parameters])


@dataclass(slots=True)
class Mine:
    """The part of a stepping that a probe watches."""

    lines: list[int]
    grads: list[Tensor | None]


class Lines:
    """Finds the lines of a probe's table that an optimizer's parameters belong to."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._line = {id(tensor): line for line, tensor in enumerate(tensors)}
        self._known: dict[int, tuple[list[Tensor], list[int], list[int]]] = {}

    def of(self, step: Stepping) -> Mine:
        """Lines and gradients of the watched parameters."""
        known = self._known.get(id(step.parameters))
        if known is None:
            places = [k for k, p in enumerate(step.parameters) if id(p) in self._line]
            lines = [self._line[id(step.parameters[k])] for k in places]
            # The list is kept, so that its id stays its own.
            known = self._known[id(step.parameters)] = (step.parameters, places, lines)
        _, places, lines = known
        if len(places) == len(step.grads):
            return Mine(lines, step.grads)
        return Mine(lines, [step.grads[k] for k in places])

    def among(self, tensors: Sequence[Tensor]) -> list[int]:
        """Lines of those of the tensors that are watched."""
        return [line for t in tensors if (line := self._line.get(id(t))) is not None]
