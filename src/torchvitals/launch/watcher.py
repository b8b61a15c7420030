"""`Watcher`: attaches a monitor when an optimizer takes its first step, and feeds it.

The monitor attaches inside the hook before that step, so that the step itself is measured; only the
activations of its forward pass have gone by. An optimizer that comes later belongs to the same run
if it holds the same model's parameters (a second phase), and begins a run of its own if not (the
next trial of a search).
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch import distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torchvitals.launch.ending import at_the_end, conclude
from torchvitals.launch.loaders import Loaders
from torchvitals.launch.models import Calls, Found, NotFound, again, can_train, find, params_of
from torchvitals.launch.settings import Settings
from torchvitals.probes.losses import Losses

if TYPE_CHECKING:
    from torchvitals.launch.evaluations import Evaluations
    from torchvitals.monitor.loss_log import LossLog
    from torchvitals.monitor.monitor import Monitor

log = logging.getLogger("torchvitals")


class Watcher:
    """Watches one script from its first optimizer step to its end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._calls = Calls()
        self._losses = Losses()
        self._loaders = Loaders(self._is_training)
        self._evaluations: Evaluations | None = None
        self._monitor: Monitor | None = None
        self._found: Found | None = None
        self._known: dict[int, ref[Optimizer]] = {}
        """Optimizers whose first step has been seen."""
        self._watched: set[int] = set()
        self._loss_log: LossLog | None = None
        self._runs: list[Path] = []
        self._gave_up = False

    def open(self) -> None:
        """Wait for the first step."""
        self._calls.open()
        self._losses.open()
        self._loaders.open()
        register_optimizer_step_pre_hook(self._before_any_step)
        at_the_end(self._failed, self._finish)

    def _before_any_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        known = self._known.get(id(optimizer))
        if known is not None and known() is optimizer:
            if id(optimizer) not in self._watched:
                self._losses.claim()
            return None
        if self._gave_up or torch.compiler.is_compiling() or os.getpid() != self._pid:
            return None
        self._known[id(optimizer)] = ref(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._meet(optimizer)
            return None
        # The model is called inside the closure: it is not known before.
        self._losses.begin_step()
        seen = self._after_first_call(closure, optimizer)
        if len(args) > 1:
            return (args[0], seen, *args[2:]), kwargs
        return args, {**kwargs, "closure": seen}

    def _after_first_call(
        self, closure: Callable[[], Any], optimizer: Optimizer
    ) -> Callable[[], Any]:
        first = True

        def seen() -> Any:
            nonlocal first
            loss = closure()
            if first:
                first = False
                others = set(optimizer._optimizer_step_pre_hooks)
                self._meet(optimizer)
                # These would have been called before the closure, had they been there.
                for number, hook in list(optimizer._optimizer_step_pre_hooks.items()):
                    if number not in others:
                        hook(optimizer, (optimizer,), {})
            return loss

        return seen

    def _meet(self, optimizer: Optimizer) -> None:
        """An optimizer takes its first step. Whatever goes wrong here, the script goes on."""
        try:
            if self._monitor is None:
                self._begin(optimizer)
            else:
                self._go_on(optimizer, self._monitor)
            if id(optimizer) not in self._watched:
                self._losses.claim()
        except Exception as error:
            self._give_up(str(error) or type(error).__name__)
            if os.environ.get("TORCHVITALS_STRICT", "") not in {"", "0"}:
                raise

    def _begin(self, optimizer: Optimizer) -> None:
        from torchvitals.monitor.monitor import _open_monitors

        if len(_open_monitors):
            self._give_up("it calls torchvitals itself", quiet=True)
            return
        together = dist.is_available() and dist.is_initialized()
        if int(os.environ.get("RANK") or 0) > 0 and not together:
            self._give_up("this is not rank 0, and torch.distributed is not initialised")
            return
        try:
            found = find(optimizer, self._calls)
        except NotFound as error:
            # Another optimizer may have more luck.
            self._tell(str(error))
            return
        self._attach(found)

    def _go_on(self, optimizer: Optimizer, monitor: Monitor) -> None:
        """An optimizer comes while others are watched."""
        assert self._found is not None
        theirs = params_of(optimizer)
        watched = {id(p) for model in self._found.models.values() for p in model.parameters()}
        if theirs.keys() & watched:
            # One that is waited for and never steps again would leave the last step unfinished.
            others = [
                other
                for other in self._found.optimizers
                if not params_of(other).keys() & theirs.keys() and can_train(other)
            ]
            models, called = self._found.models, self._found.called
            monitor.event("optimizer", f"another {type(optimizer).__name__} takes over")
            self._detach(monitor)
            self._attach(Found(models, [*others, optimizer], called), resume=monitor.path)
            return
        try:
            found = again(optimizer)
        except NotFound as error:
            self._tell(str(error))
            return
        self._detach(monitor)
        self._attach(found)

    def _attach(self, found: Found, *, resume: Path | None = None) -> None:
        from torchvitals.launch.evaluations import Evaluations
        from torchvitals.monitor.loss_log import LossLog
        from torchvitals.monitor.watch import watch

        arguments = self._arguments(found)
        if resume is not None:
            arguments |= {"run": resume, "resume": True}
        monitor = watch(found.models, found.optimizers, **arguments)
        self._calls.close()
        self._monitor, self._found = monitor, found
        self._watched = {id(optimizer) for optimizer in found.optimizers}
        self._known |= {id(optimizer): ref(optimizer) for optimizer in found.optimizers}
        if resume is None:
            self._runs.append(monitor.path)
            what = "activations" if found.called else "activations of functional calls"
            monitor.event("not_seen", f"{what} of step 1: it was under way when watching began")
        self._loaders.attach(monitor, anew=resume is None)
        evaluations = self._evaluations = Evaluations(found.models.values(), monitor)
        evaluations.attach()
        self._loss_log = LossLog(
            monitor, found.models, found.optimizers, self._losses, before=evaluations.finish
        )
        # Registered after the monitor's own, and so called before it: the last one counts, too.
        atexit.register(evaluations.close)

    def _arguments(self, found: Found) -> dict[str, Any]:
        """What `watch()` is given: only what was asked for, so that its defaults hold."""
        from torchvitals.monitor.watch import watch

        arguments = self._settings.watch_arguments()
        known = inspect.signature(watch).parameters
        for name in [name for name in arguments if name not in known]:
            self._tell(f"this version of torchvitals has no {name}=", "watching without it")
            del arguments[name]
        if "run" in arguments and self._runs:
            arguments["run"] = f"{arguments['run']}-{len(self._runs) + 1}"
        elif int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0) > 0 and "run" in arguments:
            arguments["resume"] = Path(arguments["run"]).exists()
        if not found.called:
            arguments["activations"] = False
        return arguments

    def _detach(self, monitor: Monitor, status: str = "finished") -> None:
        if self._evaluations is not None:
            self._evaluations.close()
            atexit.unregister(self._evaluations.close)
        if self._loss_log is not None:
            self._loss_log.close()
        monitor.close(status)

    def _is_training(self) -> bool:
        """Whether the watched models (if they are known yet) are in training mode."""
        if self._found is None:
            return True
        return any(model.training for model in self._found.models.values())

    def _failed(self, error: BaseException) -> None:
        if self._monitor is not None:
            self._monitor.event("error", f"{type(error).__name__}: {error}")
            self._detach(self._monitor, "failed")

    def _finish(self) -> None:
        """The script is over."""
        if os.getpid() != self._pid:
            return
        if self._monitor is not None:
            if int(os.environ.get("RANK") or 0) == 0:
                conclude(self._runs)
        elif not self._gave_up:
            self._tell("no optimizer of torch.optim took a step", "there is nothing to show")

    def _give_up(self, why: str, *, quiet: bool = False) -> None:
        self._gave_up = True
        self._calls.close()
        if not quiet:
            self._tell(why)

    def _tell(self, why: str, what: str = "the script runs on, unwatched") -> None:
        log.warning("torchvitals: %s; %s.", why, what)
