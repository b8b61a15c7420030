"""Lightning: ``Trainer(callbacks=[VitalsCallback(run="runs/gpt")])``.

Automatic and manual optimization, accumulation, validation; the step goes into the Trainer's
checkpoints, and `fit(ckpt_path=…)` goes on with the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from torchvitals.integrations.watched import Watched, missing
from torchvitals.monitor.monitor import Monitor
from torchvitals.probes.batch import size_of

try:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning import LightningModule, Trainer
        from pytorch_lightning.callbacks import Callback
    except ImportError as error:
        raise missing("lightning", "lightning", error) from error


class VitalsCallback(Callback):
    """Watches `trainer.fit()`. Takes the arguments of `torchvitals.watch()`."""

    def __init__(self, run: str | Path | None = None, **arguments: Any) -> None:
        self._watched = Watched(run, arguments)
        self._before: dict[str, float] = {}
        self._validated: set[str] = set()

    @property
    def monitor(self) -> Monitor | None:
        """The monitor, once the training has begun."""
        return self._watched.monitor

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach."""
        more: dict[str, Any] = {}
        total = trainer.estimated_stepping_batches
        if pl_module.automatic_optimization and isfinite(total) and total > 0:
            more["total_steps"] = int(total)
        self._watched.open(pl_module, trainer.optimizers, **more)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch begins."""
        if self.monitor is not None:
            self.monitor.epoch(trainer.current_epoch + 1, of=_positive(trainer.max_epochs))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """A batch is there."""
        if self.monitor is not None:
            samples, tokens = size_of(batch)
            self.monitor.count(samples=samples, tokens=tokens)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember what was known before, to tell what the validation found."""
        self._before = _numbers(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what the validation found."""
        if trainer.sanity_checking or self.monitor is None:
            return
        now = _numbers(trainer.callback_metrics)
        self._validated |= {name for name, value in now.items() if self._before.get(name) != value}
        found = {_short(name): now[name] for name in sorted(self._validated & now.keys())}
        if found:
            self.monitor.log_eval("val", **found)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Detach."""
        self._watched.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Detach, and keep what went wrong."""
        self._watched.close("failed", exception)

    def state_dict(self) -> dict[str, Any]:
        """For the Trainer's checkpoint."""
        return self._watched.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From the Trainer's checkpoint."""
        self._watched.load_state_dict(state_dict)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _short(name: str) -> str:
    return name.removeprefix("val_").removeprefix("val/") or name


def _positive(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None
