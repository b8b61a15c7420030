"""Other people's monitors, each as a small observer of a training, used the way its docs say.

Where a peer could be helped without changing what it measures, it is: wandb runs offline, without
its system statistics, console capture and git probing; torch-module-monitor's metrics are collected
but sent nowhere. An observer that can't be imported raises `NotInstalled`, and the benchmark goes
on without it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from workloads import Observer, Training


class NotInstalled(Exception):
    """The peer's package is missing."""


def need(module: str, package: str) -> ModuleType:
    """Import `module`, or say which package is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise NotInstalled(
            f"{package} is not installed: pip install -r bench/requirements.txt"
        ) from error


class ClipGradNorm(Observer):
    """`clip_grad_norm_` with a limit that never bites: what most trainings pay anyway."""

    def attach(self, training: Training) -> None:
        """Nothing to install."""
        self._parameters = list(training.model.parameters())

    def after_backward(self) -> None:
        """The norm of all gradients, and the multiplication by one."""
        torch.nn.utils.clip_grad_norm_(self._parameters, 1e9, foreach=True)


class ModuleMonitor(Observer):
    """torch-module-monitor, called as in its README: norms of gradients and parameters.

    With `activations`, also l2norm, mean and std over the last dimension of every module's output.
    Its forward hooks copy the activations in either case.
    """

    def __init__(self, activations: bool) -> None:
        self._activations = activations
        self._step = 0
        self._quiet = contextlib.ExitStack()

    def attach(self, training: Training) -> None:
        """Hooks on every module."""
        package = need("torch_module_monitor", "torch-module-monitor")
        # A last dimension of 1 has no std; the peer's users see a warning at each, once.
        self._quiet.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        self._monitor = package.ModuleMonitor(monitor_step_fn=lambda step: True)
        self._monitor.set_module(training.model)
        self._monitor.add_gradient_metric("norm", lambda x: x.norm())
        self._monitor.add_parameter_metric("norm", lambda x: x.norm())
        if self._activations:
            self._monitor.add_activation_metric("l2norm", lambda x: x.norm(dim=-1))
            self._monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1))
            self._monitor.add_activation_metric("std", lambda x: x.std(dim=-1))

    def before_forward(self) -> None:
        """Open the step."""
        self._monitor.begin_step(self._step)
        self._step += 1

    def after_backward(self) -> None:
        """Norms of parameters and gradients."""
        self._monitor.monitor_parameters()
        self._monitor.monitor_gradients()

    def after_step(self, loss: Tensor) -> None:
        """Close the step and take its metrics."""
        self._monitor.end_step()
        self._monitor.get_step_metrics()

    def close(self) -> None:
        """Remove the hooks."""
        self._monitor.activation_hooks.remove_all_hooks()
        self._quiet.close()


class Wandb(Observer):
    """`wandb.watch(log="all", log_freq=1)`: histograms of gradients and parameters, offline."""

    def attach(self, training: Training) -> None:
        """An offline run in a folder of its own."""
        os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true", WANDB_ERROR_REPORTING="false")
        wandb: Any = need("wandb", "wandb")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        settings = wandb.Settings(
            mode="offline",
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
        )
        self._run = wandb.init(project="bench", dir=self._folder.name, settings=settings)
        self._model = training.model
        self._run.watch(self._model, log="all", log_freq=1)

    def after_step(self, loss: Tensor) -> None:
        """Commit what the hooks collected."""
        self._run.log({"loss": loss.item()})

    def close(self) -> None:
        """Remove the hooks, end the run, drop its files."""
        self._run.unwatch(self._model)
        self._run.finish()
        self._folder.cleanup()


class TensorBoard(Observer):
    """Norm, mean and std of each gradient by `add_scalar`.

    With `histograms`, also `add_histogram` of each parameter.
    """

    def __init__(self, histograms: bool) -> None:
        self._histograms = histograms
        self._step = 0

    def attach(self, training: Training) -> None:
        """A writer with a folder of its own."""
        module: Any = need("torch.utils.tensorboard", "tensorboard")
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._writer = module.SummaryWriter(self._folder.name)
        self._named = list(training.model.named_parameters())

    def after_backward(self) -> None:
        """One value at a time, as the API has it."""
        writer, step = self._writer, self._step
        for name, parameter in self._named:
            gradient = parameter.grad
            if gradient is None:
                continue
            writer.add_scalar(f"gradient/{name}/norm", gradient.norm().item(), step)
            writer.add_scalar(f"gradient/{name}/mean", gradient.mean().item(), step)
            writer.add_scalar(f"gradient/{name}/std", gradient.std().item(), step)
            if self._histograms:
                writer.add_histogram(f"parameter/{name}", parameter.detach(), step)
        self._step += 1

    def close(self) -> None:
        """Flush, and drop the files."""
        self._writer.close()
        self._folder.cleanup()


TMM_NORMS = "torch-module-monitor: norms"
TMM_FULL = "torch-module-monitor: norms + activations"

PEERS: dict[str, Callable[[], Observer]] = {
    "clip_grad_norm_ (for scale)": ClipGradNorm,
    TMM_NORMS: lambda: ModuleMonitor(activations=False),
    TMM_FULL: lambda: ModuleMonitor(activations=True),
    "wandb.watch, log=all": Wandb,
    "TensorBoard: gradient scalars": lambda: TensorBoard(histograms=False),
    "TensorBoard: + parameter histograms": lambda: TensorBoard(histograms=True),
}

SLOW_PEERS = frozenset(name for name in PEERS if name.startswith(("wandb", "TensorBoard")))
"""Those that add so much to a step that few steps show it."""
