"""What the probes are told about an optimizer's step, gathered once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat, zip_longest
from operator import attrgetter, is_, is_not
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from torchvitals.probes.turns import turns_for
from torchvitals.stats.backend import Backend
from torchvitals.stats.shards import is_dtensor, locals_of

_version = attrgetter("_version")


@dataclass(slots=True)
class Stepping:
    """An optimizer about to step, or just done."""

    number: int
    """The step."""
    parameters: list[Tensor]
    """All it holds; the same list object as long as they are the same."""
    grads: list[Tensor | None]
    whole: bool = False
    """Every parameter has a gradient."""
    touched: bool = False
    """The step wrote into a gradient; such ones are None in `grads` from then on."""


class Roster:
    """The parameters of one optimizer, listed anew only when groups changed."""

    def __init__(self, optimizer: Optimizer, backend: Backend) -> None:
        self._optimizer = optimizer
        self._backend = backend
        self._sizes: list[int] = []
        self._parameters: list[Tensor] = []
        self._grads: list[Any] = []
        self._layout: Any = None
        self._before: Stepping | None = None
        self._versions: list[int | None] = []
        self._asked = slice(None)
        """The gradients whose versions are looked at in this step."""
        self._turn = 0
        self._quiet: bool | None = None
        self._spread = False

    def before(self, number: int) -> Stepping:
        """The step about to be made."""
        step = self._before = self.stepping(number)
        self._asked = slice(None)
        if self._quiet and step.whole:
            # It is known to leave gradients alone; whether it still does is asked in turns.
            turns = turns_for(len(step.grads))
            self._turn = (self._turn + 1) % turns
            self._asked = slice(self._turn, None, turns)
        self._versions = versions_of(step, self._asked)
        return step

    @property
    def quiet(self) -> bool:
        """Whether the optimizer is known to leave gradients as they are.

        Some use `.grad` as scratch space (foreach SGD with Nesterov momentum), and a fused one
        under a GradScaler unscales it.
        """
        return bool(self._quiet) and getattr(self._optimizer, "grad_scale", None) is None

    def after(self, number: int) -> Stepping:
        """The step just made."""
        step, self._before = self._before, None
        if step is None or not step.whole:
            # A closure made the gradients: they are seen now for the first time.
            step, self._asked = self.stepping(number), slice(None)
        versions = versions_of(step, self._asked)
        step.touched = versions != self._versions
        if step.touched:
            left_alone = [now == before for now, before in zip_longest(versions, self._versions)]
            if len(left_alone) < len(step.grads):
                left_alone = []  # nobody knows about the others
            step.grads = [
                grad if alone else None for grad, alone in zip_longest(step.grads, left_alone)
            ]
        self._quiet = not step.touched and self._quiet is not False
        return step

    def stepping(self, number: int) -> Stepping:
        """Its parameters and their gradients now."""
        groups = self._optimizer.param_groups
        sizes = [len(group["params"]) for group in groups]
        if sizes != self._sizes:
            self._sizes, self._layout = sizes, None
            self._parameters = [p for group in groups for p in group["params"]]
            self._spread = any(map(is_dtensor, self._parameters))
        grads: list[Any] = [p.grad for p in self._parameters]
        whole = all(map(is_not, grads, repeat(None)))
        if self._spread:
            grads = locals_of(grads)
        scale = getattr(self._optimizer, "grad_scale", None)
        if scale is not None:
            # A fused optimizer unscales while it steps: what is measured is what it will use.
            grads = unscaled(grads, scale)
        if len(grads) != len(self._grads) or not all(map(is_, grads, self._grads)):
            # After the step they are the same tensors as before it: prepared once.
            self._grads = self._prepared(grads) if whole else grads
        return Stepping(number, self._parameters, self._grads, whole)

    def _prepared(self, grads: list[Tensor]) -> list[Tensor]:
        """The backend's list; gradients are other tensors each step, of the same sizes."""
        if self._layout is None:
            self._layout = self._backend.layout(grads)
        return self._backend.fixed(grads, layout=self._layout)

    def rest(self) -> None:
        """Let go of the gradients: the training may want their memory back."""
        self._grads, self._before = [], None


def unscaled(grads: list[Tensor | None], scale: Tensor) -> list[Tensor | None]:
    """Copies of the gradients as they are without a GradScaler's factor; nothing waits."""
    return [
        None if grad is None else grad.detach() / scale.to(grad.device, non_blocking=True)
        for grad in grads
    ]


def versions_of(step: Stepping, which: slice) -> list[int | None]:
    """Counters that tell whether somebody wrote into these gradients."""
    if step.whole:
        return list(map(_version, step.grads[which]))
    return [None if grad is None else grad._version for grad in step.grads[which]]


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
