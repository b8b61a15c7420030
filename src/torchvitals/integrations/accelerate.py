"""Accelerate: a tracker that also watches.

    tracker = VitalsTracker(run="runs/gpt")
    accelerator = Accelerator(log_with=[tracker])
    accelerator.init_trackers("gpt", config=settings)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    tracker.watch(accelerator, model, optimizer)

What `accelerator.log()` is given goes into the run, `accelerator.save_state()` keeps the step, and
`accelerator.end_training()` closes the run. Without trackers, `watch(accelerator, …)` will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from torchvitals.integrations.watched import Watched, missing
from torchvitals.monitor.monitor import Monitor

try:
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker
except ImportError as error:
    raise missing("accelerate", "accelerate", error) from error


class VitalsTracker(GeneralTracker):
    """Keeps what is logged, and watches. Takes the arguments of `torchvitals.watch()`."""

    name = "torchvitals"
    requires_logging_directory = False
    main_process_only = False
    """Every process watches; the first one writes."""

    def __init__(self, run: str | Path | None = None, **arguments: Any) -> None:
        super().__init__()
        self._arguments = arguments
        self._watched = Watched(run, arguments)
        self._watching: tuple[nn.Module, list[Optimizer]] | None = None
        self._handle: RemovableHandle | None = None
        self._waiting: list[tuple[dict[str, Any], int | None]] = []

    @property
    def tracker(self) -> Monitor | None:
        """The monitor, once the first step was taken; what `accelerator.get_tracker()` unwraps."""
        return self._watched.monitor

    monitor = tracker

    def watch(
        self, accelerator: Accelerator, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer]
    ) -> VitalsTracker:
        """Watch a prepared model and its optimizers, from their first step on.

        Not before, so that `accelerator.load_state()` may still say how far the training was.
        """
        listed = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        inner = [getattr(one, "optimizer", one) for one in listed]
        self._watching = (accelerator.unwrap_model(model), inner)
        accelerator.register_for_checkpointing(self)
        self._watched.listen()
        # A hook of the optimizer's own could not add others while they are being called.
        self._handle = register_optimizer_step_pre_hook(self._first_step)
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """The settings, kept with the run."""
        self._arguments = {"config": values, **self._arguments}
        self._watched.arguments = self._arguments

    def log(self, values: dict[str, Any], step: int | None = None, **_kwargs: Any) -> None:
        """Numbers of the training; `step` counts what the script counts, and is left to it."""
        monitor = self._watched.monitor
        if monitor is None or monitor.closed:
            self._waiting.append((values, step))
            return
        numbers = {name: value for name, value in values.items() if not isinstance(value, str)}
        if numbers:
            monitor.log(**numbers)

    def finish(self) -> None:
        """The training is over."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._watched.close()

    def state_dict(self) -> dict[str, Any]:
        """For `accelerator.save_state()`."""
        return self._watched.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From `accelerator.load_state()`."""
        self._watched.load_state_dict(state)

    def _first_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._watching is None or not any(optimizer is one for one in self._watching[1]):
            return
        (model, optimizers), self._watching = self._watching, None
        self._watched.open(model, optimizers)
        waiting, self._waiting = self._waiting, []
        for values, step in waiting:
            self.log(values, step)


def watch(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    **arguments: Any,
) -> VitalsTracker:
    """Watch a prepared model without a tracker; `.finish()` ends it."""
    return VitalsTracker(**arguments).watch(accelerator, model, optimizer)
