"""`Watched`: what all frameworks share: a monitor that opens late, resumes, and logs the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from torchvitals.monitor.loss_log import LossLog
from torchvitals.monitor.monitor import Monitor
from torchvitals.monitor.watch import Models, watch
from torchvitals.probes.losses import Losses
from torchvitals.record.errors import MissingExtra
from torchvitals.store.connect import run_file


def missing(framework: str, package: str, error: ImportError) -> MissingExtra:
    """What to install."""
    return MissingExtra(
        f"torchvitals.integrations.{framework} needs {package}, which can't be imported here "
        f"({error}). Install it with: pip install {package}"
    )


class Watched:
    """One run of a framework's training: open, closed, and opened again after a checkpoint."""

    def __init__(self, run: str | Path | None, arguments: Mapping[str, Any]) -> None:
        self._run = run
        self.arguments = dict(arguments)
        """Of `watch()`."""
        self._saved: dict[str, Any] = {}
        self._losses = Losses()
        self._loss_log: LossLog | None = None
        self.monitor: Monitor | None = None
        """The monitor, once the training has begun."""

    def open(
        self,
        model: Models,
        optimizers: Sequence[Optimizer],
        *,
        start_step: int | None = None,
        **more: Any,
    ) -> Monitor:
        """Begin to watch, after the step of the checkpoint if there was one."""
        if self.monitor is not None and not self.monitor.closed:
            self.close("failed")  # left open by a training that did not come to its end
        run = self._run or self._saved.get("run")
        step = self._saved.get("step", start_step)
        if self.monitor is not None and step is None:
            step = self.monitor.step_number
        if step:
            more["start_step"] = step
            more["resume"] = run is not None and run_file(Path(run)).exists()
        state, self._saved = self._saved.get("monitor"), {}
        monitor = self.monitor = watch(
            model, list(optimizers), **{"run": run, **more, **self.arguments}
        )
        if state is not None:
            monitor.load_state_dict(state)
        self._run = monitor.path
        self.listen()
        models = {"": model} if isinstance(model, nn.Module) else dict(model)  # type: ignore[arg-type]
        self._loss_log = LossLog(monitor, models, optimizers, self._losses)
        return monitor

    def listen(self) -> None:
        """See losses from now on: before `open()`, where that comes as late as the first step."""
        if not self._losses.is_open:
            self._losses.open()

    def close(self, status: str = "finished", error: BaseException | None = None) -> None:
        """The training is over."""
        if self._loss_log is not None:
            self._loss_log.close()
            self._loss_log = None
        self._losses.close()
        if self.monitor is not None and not self.monitor.closed:
            if error is not None:
                self.monitor.event("error", f"{type(error).__name__}: {error}")
            self.monitor.close(status)

    def state_dict(self, *, plain: bool = False) -> dict[str, Any]:
        """What a checkpoint holds: which run it belongs to, how far it had come, the monitor.

        `plain`: for a checkpoint in JSON, without the monitor's tensors.
        """
        if self.monitor is None:
            return dict(self._saved)
        state: dict[str, Any] = {"run": str(self.monitor.path), "step": self.monitor.step_number}
        if not plain and not self.monitor.closed:
            state["monitor"] = self.monitor.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there when the training begins."""
        self._saved = dict(state)
