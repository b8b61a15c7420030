"""Ignite: `VitalsHandler` watches a trainer; `GradMonitor` stands between gradients and weights.

VitalsHandler(model, optimizer, run="runs/gpt").attach(trainer)
GradMonitor(model, optimizer, k=3.0).attach(trainer)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchvitals.guard import Guard
from torchvitals.integrations.watched import Watched, missing
from torchvitals.monitor.monitor import Monitor
from torchvitals.monitor.watch import Models
from torchvitals.probes.batch import size_of
from torchvitals.record.errors import ConfigError

try:
    from ignite.base import Serializable
    from ignite.engine import Engine, Events
    from ignite.engine.events import RemovableEventHandle
except ImportError as error:
    raise missing("ignite", "pytorch-ignite", error) from error


class VitalsHandler(Serializable):
    """Watches a trainer's run. Takes the arguments of `torchvitals.watch()`."""

    def __init__(
        self,
        model: Models,
        optimizer: Optimizer | Sequence[Optimizer],
        run: str | Path | None = None,
        **arguments: Any,
    ) -> None:
        self._model = model
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self._watched = Watched(run, arguments)
        self._handles: list[RemovableEventHandle] = []
        self._engine: Engine | None = None

    @property
    def monitor(self) -> Monitor | None:
        """The monitor, once the training has begun."""
        return self._watched.monitor

    def attach(self, engine: Engine, *, evaluators: Mapping[str, Engine] | None = None) -> None:
        """Watch this trainer, and keep the metrics of these evaluators (by split, e.g. "val")."""
        handlers: list[tuple[Any, Callable[..., None]]] = [
            (Events.STARTED, self._started),
            (Events.EPOCH_STARTED, self._epoch_started),
            (Events.ITERATION_STARTED, self._iteration_started),
            (Events.COMPLETED, self._ended),
            (Events.TERMINATE, self._ended),
        ]
        self._handles += [engine.add_event_handler(*handler) for handler in handlers]
        for split, evaluator in (evaluators or {}).items():
            self._handles.append(
                evaluator.add_event_handler(Events.COMPLETED, self._evaluated, split)
            )

    def detach(self) -> None:
        """Stop watching, and take every handler off."""
        self._ended()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        engine, self._engine = self._engine, None
        if engine is not None and not engine._event_handlers.get(Events.EXCEPTION_RAISED):
            # The empty list would make the engine believe that somebody handles exceptions.
            engine._event_handlers.pop(Events.EXCEPTION_RAISED, None)

    def state_dict(self) -> OrderedDict[str, Any]:
        """For Ignite's `Checkpoint`."""
        return OrderedDict(self._watched.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """From Ignite's `Checkpoint`."""
        super().load_state_dict(state_dict)
        self._watched.load_state_dict(state_dict)

    def _started(self, engine: Engine) -> None:
        if not engine.has_event_handler(self._raised):
            self._hear_of_exceptions(engine)
        self._watched.open(self._model, self._optimizers)

    def _epoch_started(self, engine: Engine) -> None:
        if self.monitor is not None:
            self.monitor.epoch(engine.state.epoch, of=engine.state.max_epochs)

    def _iteration_started(self, engine: Engine) -> None:
        if self.monitor is not None:
            samples, tokens = size_of(engine.state.batch)
            self.monitor.count(samples=samples, tokens=tokens)

    def _evaluated(self, engine: Engine, split: str) -> None:
        found = {name: value for name, value in engine.state.metrics.items() if _is_number(value)}
        if found and self.monitor is not None:
            self.monitor.log_eval(split, **found)

    def _ended(self, _engine: Engine | None = None) -> None:
        self._watched.close()

    def _hear_of_exceptions(self, engine: Engine) -> None:
        # An engine with a handler of exceptions leaves raising them to it.
        alone = not engine._event_handlers.get(Events.EXCEPTION_RAISED)
        handle = engine.add_event_handler(Events.EXCEPTION_RAISED, self._raised, alone)
        self._handles.append(handle)
        self._engine = engine

    def _raised(self, _engine: Engine, error: BaseException, alone: bool) -> None:
        self._watched.close("failed", error)
        if alone:
            raise error


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) or (isinstance(value, Tensor) and value.numel() == 1)


class GradMonitor(Serializable):
    """Judges each step before it reaches the weights: `torchvitals.guard.Guard` for an engine.

    Args:
        model: whose gradients are judged.
        optimizer: the one that steps.
        k: a spike is a norm above mean + k·std of those before (of their logarithms).
        scaler: the GradScaler, if there is one that can't be found.
        rule: what a spike is instead: a rule of the guard, or a callable `(stats, value) -> bool`.
        on_spike: called with the verdict of every flagged step.
        action: "skip", "clip", "rollback", "stop", "warn", or a callable `(verdict) -> action`.

    `engine.state.unhealthy_spike` says whether the last step was flagged, or skipped by a
    GradScaler, and is there from the start; `engine.state.metrics["grad_norm"]` is the norm of
    its gradient.
    """

    _state_dict_all_req_keys = ("guard",)

    def __init__(  # noqa: PLR0917  # its users pass them by place
        self,
        model: nn.Module,
        optimizer: Optimizer,
        k: float = 3.0,
        scaler: torch.amp.GradScaler | None = None,
        rule: Any = None,
        on_spike: Callable[[Any], Any] | None = None,
        action: Any = "skip",
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        # k belongs to the default rule; a rule of one's own has its own limit.
        given: dict[str, Any] = {"k": k} if rule is None else {"rule": rule}
        self.guard = Guard(action, scaler=scaler, on_spike=on_spike, **given)
        """The guard itself."""
        self.guard.check([optimizer])
        self._model, self._optimizer = model, optimizer
        self._handles: list[RemovableEventHandle] = []

    def attach(self, engine: Engine) -> None:
        """Stand before the optimizer from now on, and tell this engine's state."""
        self.guard.attach(self._optimizer, self._model)
        engine.state.unhealthy_spike = False
        self._handles = [
            engine.add_event_handler(Events.STARTED, self._started),
            engine.add_event_handler(Events.ITERATION_COMPLETED, self._tell),
        ]

    def detach(self) -> None:
        """Take every hook and handler off. Calling it again does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.guard.detach()

    def state_dict(self) -> OrderedDict[str, Any]:
        """For Ignite's `Checkpoint`."""
        return OrderedDict(guard=self.guard.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """From Ignite's `Checkpoint`; before or after `attach`."""
        super().load_state_dict(state_dict)
        self.guard.load_state_dict(state_dict["guard"])

    def _started(self, engine: Engine) -> None:
        # A run that begins has a state of its own.
        engine.state.unhealthy_spike = False

    def _tell(self, engine: Engine) -> None:
        engine.state.unhealthy_spike = self.guard.last_flagged or self.guard.last_step_skipped
        engine.state.metrics["grad_norm"] = self.guard.last_norm
