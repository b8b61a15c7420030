"""Knows which gradients a GradScaler's factor is on: gradients are logged as what they are.

A scaler that merely exists says nothing: it may be another training's. What counts is seen in its
calls: `scale()` puts the factor on the gradients to come, `unscale_()` and `step()` take it off
those of one optimizer, and `update()` ends the round. Without such a call nothing is divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any
from weakref import WeakKeyDictionary, finalize, ref

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from torchvitals.stats.swap import Swap


@dataclass(frozen=True, slots=True)
class Round:
    """From a scaler's `scale()` to its `update()`."""

    factor: Any
    """What it multiplied losses with; a tensor where reading it would wait."""
    states: Any
    """The scaler's own notes of the round, which an update replaces by other ones."""


class Scaling:
    """Sees the calls of all scalers while it is open."""

    def __init__(self) -> None:
        self._rounds: WeakKeyDictionary[GradScaler, Round] = WeakKeyDictionary()
        """The last one of each, in the order in which they began."""
        self._unscaled: WeakKeyDictionary[Optimizer, ref[GradScaler]] = WeakKeyDictionary()
        """Whose gradients have no factor on them any more, and who took it off."""
        self._swaps: dict[tuple[type[GradScaler], str], Swap] = {}
        self._undo: finalize[..., Scaling] | None = None

    def open(self) -> None:
        """Start seeing."""
        if self._undo is not None:
            return
        for kind in dict.fromkeys(_kinds(GradScaler)):
            for name, seen in SEEN.items():
                if name in vars(kind) and (kind, name) not in self._swaps:
                    around = partial(_around, ref(self), seen)
                    self._swaps[kind, name] = Swap(kind, name, around)
        swaps = list(self._swaps.values())
        for swap in swaps:
            swap.install()
        # A monitor that is dropped takes what it put there with it.
        self._undo = finalize(self, _remove, swaps)

    def close(self) -> None:
        """Stop seeing, and forget what was seen."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._rounds.clear()
        self._unscaled.clear()

    @property
    def seen_any(self) -> bool:
        """Whether any scaler scaled a loss."""
        return bool(self._rounds)

    def factors(self, parameters: Sequence[Tensor]) -> float | list[float]:
        """What the gradient of each is multiplied with just now; one number if all are alike."""
        unscaled = {
            id(p)
            for optimizer in self._unscaled
            for group in optimizer.param_groups
            for p in group["params"]
        }
        done = [id(p) in unscaled for p in parameters]
        rounds = list(self._rounds.items())
        under_way = [one for scaler, one in rounds if scaler._per_optimizer_states is one.states]
        # A round that ended without an optimizer of ours was another model's.
        if all(done) or not (under_way or any(done)):
            return 1.0
        last = under_way[-1] if under_way else rounds[-1][1]
        factor = float(last.factor)
        return [1.0 if one else factor for one in done] if any(done) else factor

    def _scales(self, scaler: GradScaler) -> None:
        scale: Any = scaler._scale
        if scale is None:
            return
        # An update writes into it.
        factor = float(scale) if scale.is_cpu else scale.clone()
        self._rounds.pop(scaler, None)
        self._rounds[scaler] = Round(factor, scaler._per_optimizer_states)
        for optimizer, by in list(self._unscaled.items()):
            state = scaler._per_optimizer_states.get(id(optimizer))
            stepped = state is not None and state["stage"] is not OptState.READY
            # Once unscaled, gradients are not scaled again before the round is over.
            if by() is None or (by() is scaler and not stepped):
                del self._unscaled[optimizer]

    def _unscales(self, scaler: GradScaler, optimizer: Optimizer | None = None) -> None:
        if optimizer is not None:
            self._unscaled[optimizer] = ref(scaler)


SEEN: dict[str, Callable[..., None]] = {
    "scale": Scaling._scales,
    "unscale_": Scaling._unscales,
    "step": Scaling._unscales,
}
"""What is noted after which call."""


def _kinds(kind: type[GradScaler]) -> Iterator[type[GradScaler]]:
    """The scalers there are: FSDP's scales with a method of its own."""
    yield kind
    for special in kind.__subclasses__():
        yield from _kinds(special)


def _around(
    me: ref[Scaling], seen: Callable[..., None], below: Callable[..., Any]
) -> Callable[..., Any]:
    """A scaler's method that tells, once it is done, on which optimizer it worked."""

    @wraps(below)
    def call(self: GradScaler, *args: Any, **kwargs: Any) -> Any:
        out = below(self, *args, **kwargs)
        if torch.compiler.is_compiling() or ours.__vitals_over__ or not self.is_enabled():
            return out
        scaling = me()
        if scaling is not None:
            given = (*args, *kwargs.values())
            seen(scaling, self, *(x for x in given[:1] if isinstance(x, Optimizer)))
        return out

    ours: Any = call
    return call


def _remove(swaps: Sequence[Swap]) -> None:
    for swap in swaps:
        swap.remove()
