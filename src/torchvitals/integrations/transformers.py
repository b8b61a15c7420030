"""Transformers: ``Trainer(…, callbacks=[VitalsCallback(run="runs/gpt")])``.

The step is the Trainer's `global_step`; `train(resume_from_checkpoint=…)` goes on with the run that
the checkpoint belongs to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from torchvitals.integrations.watched import Watched, missing
from torchvitals.monitor.monitor import Monitor

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_callback import ExportableState
except ImportError as error:
    raise missing("transformers", "transformers", error) from error

NAME = "VitalsCallback"
NOT_RESULTS = ("_runtime", "_per_second", "_compilation_time", "_model_preparation_time")
"""What a Trainer reports of an evaluation beside its results."""


class VitalsCallback(TrainerCallback, ExportableState):
    """Watches `trainer.train()`. Takes the arguments of `torchvitals.watch()`."""

    def __init__(self, run: str | Path | None = None, **arguments: Any) -> None:
        self._watched = Watched(run, arguments)
        self._given = {"run": None if run is None else str(run), **arguments}

    @property
    def monitor(self) -> Monitor | None:
        """The monitor, once the training has begun."""
        return self._watched.monitor

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Attach."""
        if state.global_step:
            saved = (state.stateful_callbacks or {}).get(NAME, {})
            run = saved.get("attributes", {}).get("saved", {}).get("run")
            self._watched.load_state_dict({"run": run, "step": state.global_step})
        while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = optimizer.optimizer  # Accelerate's wrapper
        self._watched.open(model, [optimizer], total_steps=state.max_steps)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An epoch begins."""
        if self.monitor is not None:
            self.monitor.epoch(int(state.epoch or 0) + 1, of=state.num_train_epochs or None)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the results; with several evaluation sets, each comes by its own name."""
        found = {
            name.removeprefix("eval_"): float(value)
            for name, value in (metrics or {}).items()
            if name.startswith("eval_") and not name.endswith(NOT_RESULTS)
        }
        if found and self.monitor is not None:
            self.monitor.log_eval("eval", **found)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Detach."""
        self._watched.close()

    @property
    def saved(self) -> dict[str, Any]:
        """What the Trainer's checkpoint keeps."""
        return self._watched.state_dict(plain=True)

    @saved.setter
    def saved(self, state: dict[str, Any]) -> None:
        self._watched.load_state_dict(state)

    def state(self) -> dict[str, Any]:
        """For the Trainer's checkpoint."""
        return {"args": self._given, "attributes": {"saved": self.saved}}
