"""`Ward`: one optimizer under guard, with the statistics of its own."""

from __future__ import annotations

import math
import sys
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from torchvitals.guard.aside import Aside
from torchvitals.guard.losses import Losses
from torchvitals.guard.on_device import OnDevice
from torchvitals.guard.rates import Rates
from torchvitals.guard.rules import Rule
from torchvitals.guard.signals import Norms, Reading
from torchvitals.record import ConfigError
from torchvitals.stats.backend import Backend

Floats: TypeAlias = NDArray[np.float64]

FADE = 0.9
"""Of a tensor's usual norm, which culprits are told by."""
CULPRITS = 3


class Ward:
    """What is known of one optimizer."""

    def __init__(
        self, number: int, optimizer: Optimizer, names: Mapping[int, str], rule: Rule,
        backend: Backend,
    ) -> None:  # fmt: skip
        self.number, self.optimizer, self.rule = number, optimizer, rule
        self.losses, self.rates, self.aside = Losses(), Rates(), Aside()
        self.steps = 0
        self.skips: deque[int] = deque()
        """Steps that were skipped lately."""
        self.noted = 0
        self.skip_next = False
        """Its gradients are of weights that were rolled back meanwhile."""
        self.late: list[Any] = []
        """Losses of steps already made."""
        self.flagged = self.was_flagged = False
        self.skipped = False
        self.good = False
        """What the step under way was judged to be."""
        self.norm = math.nan
        self.loss: Any = None
        """Of the step about to be made, as it was told."""
        self.reading: Reading | None = None
        """Made where gradients were about to be clipped."""
        self._clipped: list[tuple[weakref.ref[Tensor], int]] = []
        """The gradients as clipping left them."""
        self.device: OnDevice | None = None
        self.device_flag: Tensor | None = None
        self.handed: list[str] = []
        """Attributes of the optimizer that are ours to take away after the step."""
        self.hook_ran = False
        self._names = names
        self._norms = Norms(backend)
        self._sizes: list[int] = []
        self._parameters: list[Tensor] = []
        self._everyone: list[int] = []
        self._usual: Floats = np.zeros(0)
        self._seen: set[int] = set()
        self._outer: FrameType | None = None
        self._depth = 0

    @property
    def parameters(self) -> list[Tensor]:
        """All it holds; listed anew only when groups changed."""
        groups = self.optimizer.param_groups
        sizes = [len(group["params"]) for group in groups]
        if sizes != self._sizes:
            self._sizes = sizes
            self._parameters = [p for group in groups for p in group["params"]]
            self._everyone = list(range(len(self._parameters)))
            usual = np.full(len(self._parameters), np.nan)
            usual[: min(len(usual), len(self._usual))] = self._usual[: len(usual)]
            self._usual = usual
        return self._parameters

    def grads(self) -> tuple[list[int], list[Tensor]]:
        """Which parameters have a gradient, and the gradients."""
        found = [p.grad for p in self.parameters]
        if all(grad is not None for grad in found):
            return self._everyone, found  # type: ignore[return-value]
        pairs = [(i, grad) for i, grad in enumerate(found) if grad is not None]
        return [i for i, _ in pairs], [grad for _, grad in pairs]

    def read(self) -> Reading:
        """Norms of the gradients as they are now."""
        places, grads = self.grads()
        return self._norms.read(places, grads)

    def before_clip(self, scale: float) -> None:
        """Read the norms, unless an earlier clipping call of this step did."""
        if self.reading is None or self._is_stale():
            self.reading = self.read()
            self.reading.scale = scale

    def after_clip(self) -> None:
        """Remember the gradients by which the reading is known to be of this step."""
        self._clipped = [(weakref.ref(grad), grad._version) for grad in self.grads()[1]]

    def take_reading(self) -> Reading:
        """What was read before clipping, or else is read now."""
        reading, stale = self.reading, self.reading is not None and self._is_stale()
        self.reading, self._clipped = None, []
        return self.read() if reading is None or stale else reading

    def _is_stale(self) -> bool:
        """Whether there are other gradients than those that were clipped: no step followed.

        A GradScaler may have unscaled them since, which is one write; zeroing and adding is two.
        """
        grads = self.grads()[1]
        return len(grads) != len(self._clipped) or any(
            ref() is not grad or grad._version > version + 1
            for grad, (ref, version) in zip(grads, self._clipped, strict=True)
        )

    def enter(self) -> bool:
        """A step begins; False for one inside a step: a subclass that calls super().step()."""
        if self._outer is not None and _running(self._outer):
            self._depth += 1
            return False
        self._outer, self._depth = sys._getframe(2), 1
        return True

    def leave(self) -> bool:
        """A step ends; False for an inner one."""
        self._depth -= 1
        if self._depth > 0:
            return False
        self._outer = None
        return True

    def newcomers(self, places: Sequence[int]) -> bool:
        """Whether a parameter has a gradient for the first time, later than others (unfreezing)."""
        if len(self._seen) == len(places) and places is self._everyone:
            return False
        known = len(self._seen)
        self._seen.update(places)
        return 0 < known < len(self._seen)

    def learn_usual(self, places: Sequence[int], norms: Floats) -> None:
        """Take the norms of a good step in."""
        if len(places) == len(self._usual):
            usual = self._usual
            if math.isnan(usual.sum()):
                usual[np.isnan(usual)] = norms[np.isnan(usual)]
            usual *= FADE
            usual += (1.0 - FADE) * norms
            return
        at = np.asarray(places, dtype=np.intp)
        old = self._usual[at]
        self._usual[at] = np.where(np.isnan(old), norms, FADE * old + (1.0 - FADE) * norms)

    def culprits(self, places: Sequence[int], norms: Floats) -> list[str]:
        """Non-finite tensors, the nearest to the loss first; else those most above their usual."""
        bad = [places[i] for i in np.flatnonzero(~np.isfinite(norms)).tolist()]
        if bad:
            return [self.name(place) for place in bad[::-1][:CULPRITS]]
        if not len(norms):
            return []
        # Only those that matter: a tensor of a thousandth of the norm explains nothing.
        matters = norms * norms >= 0.01 * float(np.dot(norms, norms))
        usual = self._usual[np.asarray(places, dtype=np.intp)]
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = np.where(matters, np.nan_to_num(norms / usual, nan=1.0, posinf=1e300), -1.0)
        order = np.argsort(-excess, kind="stable")[:CULPRITS].tolist()
        return [self.name(places[i]) for i in order if excess[i] >= 0]

    def name(self, place: int) -> str:
        """Of a parameter."""
        return self._names.get(id(self.parameters[place]), f"parameter {place}")

    def full(self, places: Sequence[int], norms: Floats) -> Floats:
        """Norms at all places; NaN where there is no gradient."""
        out = np.full(len(self.parameters), np.nan)
        out[np.asarray(places, dtype=np.intp)] = norms
        return out

    def state_dict(self) -> dict[str, Any]:
        """Everything later decisions depend on."""
        if self.device is not None:
            self.device.bring_home()
        return {
            "rule": self.rule.name, "rule_state": self.rule.state_dict(),
            "losses": self.losses.state_dict(), "rates": self.rates.state_dict(),
            "steps": self.steps, "skips": list(self.skips), "usual": self._usual.tolist(),
            "seen": sorted(self._seen), "flagged": self.flagged,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave."""
        if state["rule"] != self.rule.name:
            raise ConfigError(
                f"this state was saved with rule={state['rule']!r}, the guard has "
                f"{self.rule.name!r}; make it with the same rule"
            )
        self.rule.load_state_dict(state["rule_state"])
        self.losses.load_state_dict(state["losses"])
        self.rates.load_state_dict(state["rates"])
        self.steps, self.skips = int(state["steps"]), deque(state["skips"])
        self.flagged = bool(state["flagged"])
        if len(self.parameters) == len(state["usual"]):
            self._usual = np.array(state["usual"], dtype=np.float64)
        self._seen = set(state["seen"])
        self.device = None


def to_host(reading: Reading, extras: Sequence[Tensor | float]) -> tuple[Floats, list[float]]:
    """Norms and a few more numbers on the host: one transfer, however many they are."""
    if reading.norms is not None:
        return reading.norms, [float(one) for one in extras]
    norms = reading.device_norms
    assert norms is not None
    tensors = [
        one.detach().reshape(()).to(norms.device, torch.float64 if norms.is_cpu else norms.dtype)
        for one in extras
        if isinstance(one, Tensor)
    ]
    wide = norms.double() if norms.is_cpu else norms
    together = (torch.cat([wide, torch.stack(tensors)]) if tensors else wide).cpu().double().numpy()
    rest = iter(together[len(norms) :].tolist())
    numbers = [next(rest) if isinstance(one, Tensor) else float(one) for one in extras]
    return together[: len(norms)].copy(), numbers


def _running(frame: FrameType) -> bool:
    """Whether that call is one of those that led here."""
    here: FrameType | None = sys._getframe(1)
    while here is not None and here is not frame:
        here = here.f_back
    return here is not None
