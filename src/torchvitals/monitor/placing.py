"""`Placing`: whose step a number is of that was logged without saying so.

`monitor.log()` may stand after the optimizer's step (the number is of the step just done), before
it (of the step under way), or before the loop. One loop may do all three: evaluate, then log the
norm of the gradients before each step and the loss after it. So each name is settled by itself,
once, where its first call stands:

- before the first step, when the model was called or its gradients were made already: it is of the
  step under way, each time;
- before the first step, with no such sign: of the first step, and its next call settles it. Where
  a training followed whose calls are seen, the first one came before the loop, and the name is of
  the step just done. Otherwise (compiled, ``inputs=False``) it stands before each step;
- after a step: as its company in the same call, else as the first call after the first step: one
  that holds no name of the step under way says that numbers are of the step just done.

Between the steps of several optimizers a round is under way, and the number is of it. But when the
name has been logged for it before any of them stepped, the call speaks of the next one, which the
next step of the same optimizer begins (a critic that steps five times as often as the generator).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from torchvitals.monitor.probe_set import Probes
from torchvitals.monitor.steps import Steps

MAX_NAMES = 4096
"""Names beyond these are not remembered."""


class Placing:
    """Settles names, and says which step a call is of."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._ahead: dict[str, bool] = {}
        """Of names that are settled: whether they are of the step under way."""
        self._early: set[str] = set()
        """Names logged before the first step, without a sign that it had begun."""
        self._early_probes: Probes | None = None
        """Of the monitor, while the first step is to come and there are such names."""
        self._trained = False
        """Whether the first step was seen to train, after these."""
        self._usual: bool | None = None
        """What names that join later are."""
        self._untouched: dict[str, int] = {}
        """The round for which a name was logged before any optimizer stepped in it."""

    def step_of(self, numbers: Mapping[str, Any], probes: Probes, *, midway: bool) -> int:
        """The step of a call. `midway`: some optimizer has stepped in the round under way."""
        step = self._steps.current
        if midway:
            if any(self._untouched.get(name) == step for name in numbers):
                step += 1
                self._touch(numbers, step)
            return step
        known = self._known(numbers)
        if not self._steps.has_stepped:
            if known or self._begun(numbers, probes):
                self._touch(numbers, step)
            return step
        ahead = self._settled(numbers) if known is None else known
        if self._usual is None:
            self._usual = ahead
        if not ahead:
            return step - 1
        self._touch(numbers, step)
        return step

    def end_step(self) -> None:
        """A step ended, and what the optimizer stepped with is still there."""
        probes, self._early_probes = self._early_probes, None
        if probes is not None:
            self._trained = probes.inputs is not None and has_gradients(probes)

    def _known(self, names: Iterable[str]) -> bool | None:
        for name in names:
            ahead = self._ahead.get(name)
            if ahead is not None:
                return ahead
        return None

    def _begun(self, numbers: Mapping[str, Any], probes: Probes) -> bool:
        if under_way(numbers, probes):
            self._remember(numbers, ahead=True)
            return True
        self._early.update(numbers)
        self._early_probes = probes
        return False

    def _settled(self, names: Mapping[str, Any]) -> bool:
        ahead = bool(self._usual) if self._early.isdisjoint(names) else not self._trained
        self._remember(names, ahead=ahead)
        return ahead

    def _remember(self, names: Iterable[str], *, ahead: bool) -> None:
        if len(self._ahead) < MAX_NAMES:
            self._ahead.update(dict.fromkeys(names, ahead))

    def _touch(self, names: Iterable[str], step: int) -> None:
        if len(self._untouched) >= MAX_NAMES:
            self._untouched.clear()
        self._untouched.update(dict.fromkeys(names, step))


def under_way(numbers: Mapping[str, Any], probes: Probes) -> bool:
    """Whether there is a sign that the first step has begun: a call of the model, or gradients."""
    if any(isinstance(number, Tensor) and number.requires_grad for number in numbers.values()):
        return True
    if probes.inputs is not None and probes.inputs.saw_calls:
        return True
    return has_gradients(probes)


def has_gradients(probes: Probes) -> bool:
    """Whether any parameter has a gradient now."""
    gradients = probes.gradients
    return gradients is not None and any(p.grad is not None for p in gradients.parameters)
