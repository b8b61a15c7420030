"""`ModuleMonitor`: metrics of one's own, on the user's word: begin a step, look, end it.

    monitor = ModuleMonitor(monitor_step_fn=lambda step: step % 10 == 0)
    monitor.set_module(model)
    monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1))
    monitor.add_gradient_metric("norm", torchvitals.stats.norm)

The same machine as `watch()` behind another door: names, hooks, kernel, recorder and run file are
shared. Metrics of a step are columns of its row; `get_step_metrics()` gives them as a flat dict.
Memory does not grow with the run: what is over is in the run's file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import index
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from torchvitals.monitor import metrics as m
from torchvitals.monitor.keeping import Keeping
from torchvitals.monitor.looking import Looking
from torchvitals.monitor.metric_book import MetricBook
from torchvitals.monitor.metric_methods import TakesMetrics
from torchvitals.monitor.mixin import ReferenceBook, dismiss, enlist
from torchvitals.monitor.reference import copy_of, run_quietly
from torchvitals.probes.tree import Tree
from torchvitals.record import ROOT, ConfigError
from torchvitals.stats.backend import choose_backend

NOTHING = "$.^"
"""A regex that matches no name."""


class ModuleMonitor(TakesMetrics):
    """Computes the metrics it is given, on the steps it is told to."""

    _for_reference = False
    """Whether what is logged comes from the reference model."""

    def __init__(
        self,
        monitor_step_fn: Callable[[int], bool] | None = None,
        format_module_name_fn: Callable[[str], str] | None = None,
        excluded_modules_regex: str = NOTHING,
        logger: Any = None,
        cpu_offload: bool = False,
        *,
        run: str | Path | Literal[False] | None = None,
        reference: nn.Module | Literal["init"] | None = None,
        backend: str = "auto",
    ) -> None:
        """Watch nothing yet.

        Args:
            monitor_step_fn: which steps are monitored; all of them by default.
            format_module_name_fn: names for modules and parameters; by default their own, with the
                prefixes of wrappers (compile, FSDP, checkpointing, DDP) taken out.
            excluded_modules_regex: modules and parameters that are not looked at (re.match).
            logger: told of mistakes in metrics, besides torchvitals' own logger.
            cpu_offload: activations that wait for the reference model wait on the CPU.
            run: the run's folder; by default ``runs/<date>-<model>``; False stores nothing.
            reference: a model to compare with, or "init": the model as it is when it is set.
            backend: "native", "triton", "torch", or the best there is.
        """
        if monitor_step_fn is not None and not callable(monitor_step_fn):
            raise ConfigError(
                "monitor_step_fn must be a function of the step's number, got "
                f"{monitor_step_fn!r}; for every tenth step: lambda step: step % 10 == 0"
            )
        try:
            self._excluded = re.compile(excluded_modules_regex)
        except re.error as error:
            raise ConfigError(
                f"excluded_modules_regex {excluded_modules_regex!r} is no regex: {error}"
            ) from None
        self._due = monitor_step_fn or (lambda _step: True)
        self._format = format_module_name_fn
        self._logger = logger
        self._keeping = Keeping(run)
        self._looking = Looking(
            choose_backend(backend),
            looks=self.is_monitoring,
            on_trouble=self._trouble,
            offload=cpu_offload,
        )
        self._metrics = self._looking.metrics
        self._reference_book = ReferenceBook(self._trouble)
        self._left_out: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        """Excluded modules and their names."""
        self._reference_choice = reference
        self._paused = 0
        self._monitored = False
        self._begun = False
        """Whether a step began that is not ended yet."""
        self._last: dict[str, float] = {}
        self.module: nn.Module | None = None
        """The model that is watched."""
        self.reference_module: nn.Module | None = None
        self.module_names: dict[nn.Module, str] = {}
        """Every watched module and its name; the root's is ``[root module]``."""
        self.reference_names: dict[nn.Module, str] = {}
        self.current_step: int | None = None

    # What is watched

    def set_module(self, module: nn.Module) -> None:
        """Watch this model."""
        if self.module is not None:
            raise ConfigError("Module has already been set; make another ModuleMonitor for it")
        if not isinstance(module, nn.Module):
            raise ConfigError(f"the module must be a torch.nn.Module, got {type(module).__name__}")
        self._keeping.check()
        self.module = module
        self.module_names, parameters = self._named(module)
        self._looking.watch(self.module_names, parameters)
        enlist(self.module_names, self, is_reference=False)
        if self._reference_choice is not None:
            self.set_reference_module(self._reference_choice)

    def set_reference_module(self, module: nn.Module | Literal["init"]) -> None:
        """Compare with this model; "init" takes a copy of the watched one as it is now."""
        if self.module is None:
            raise ConfigError("Set the module to monitor before the reference module")
        chosen = copy_of(self.module) if isinstance(module, str) else module
        if isinstance(module, str) and module != "init":
            raise ConfigError(f'reference must be a model or "init", got {module!r}')
        if not isinstance(chosen, nn.Module):
            raise ConfigError(f"the reference must be a torch.nn.Module, got {chosen!r}")
        self.remove_reference_module()
        self.reference_module = chosen
        self.reference_names, parameters = self._named(chosen)
        self._looking.watch(self.reference_names, parameters, is_reference=True)
        # A module that both models share stays the watched one's.
        own = self.reference_names.keys() - self.module_names.keys()
        enlist(own, self, is_reference=True)

    def remove_reference_module(self) -> None:
        """Compare with nothing."""
        if self.reference_module is not None:
            dismiss(self.reference_names, self, is_reference=True)
        self.reference_module, self.reference_names = None, {}
        self._looking.forget_reference()

    def has_reference_module(self) -> bool:
        """Whether there is a model to compare with."""
        return self.reference_module is not None

    def run_reference(self, *args: Any, **kwargs: Any) -> Any:
        """Call the reference model on these inputs, moved to its device and dtype, in eval mode."""
        if self.reference_module is None:
            raise ConfigError("Set the reference module before running it")
        return run_quietly(self.reference_module, args, kwargs)

    def _named(self, model: nn.Module) -> tuple[dict[nn.Module, str], dict[str, Tensor]]:
        if self._format is None:
            tree = Tree({"": model}, bare=True)
            modules = {site.module: site.name for site in tree.modules}
            parameters: dict[str, Tensor] = {s.name: s.parameter for s in tree.parameters}
        else:
            rename = self._format
            modules = {x: rename(name) if name else ROOT for name, x in model.named_modules()}
            parameters = {rename(name): p for name, p in model.named_parameters()}
        self._left_out |= {x: name for x, name in modules.items() if self.is_excluded(name)}
        return (
            {x: name for x, name in modules.items() if not self.is_excluded(name)},
            {name: p for name, p in parameters.items() if not self.is_excluded(name)},
        )

    # Steps

    def begin_step(self, step: int) -> bool:
        """A step begins; says whether it is monitored.

        What a step that was not ended has gathered belongs to none: it is dropped.
        """
        try:
            step = index(step)
        except TypeError:
            raise ConfigError(f"a step is a whole number, got {step!r}") from None
        if self.current_step is not None and step < self.current_step:
            raise ConfigError(
                f"step {step} comes after step {self.current_step}; steps do not go back"
            )
        monitored = bool(self._due(step))
        if monitored and self.module is None:
            raise ConfigError("Set the module to monitor before beginning a step")
        if self._begun:
            self._looking.drop()
            self._reference_book.drop()
        self._begun = True
        self.current_step = self._looking.book.step = step
        self._monitored = monitored
        self._last = {}
        if self.is_monitoring():
            self._looking.open()
        return monitored

    def end_step(self) -> None:
        """The step is over: its values are aggregated and stored."""
        if self.current_step is None:
            return
        self._monitored = self._begun = False
        self._last = self._reference_book.beside(self._looking.finish(), self.current_step)
        if self._last:
            self._keeping.put(self.module, self.current_step, self._last)

    def after_micro_batch(self) -> None:
        """A micro-batch is over: nothing of it waits for the reference any more."""
        self._looking.pairing.clear()

    def is_step_monitored(self, step: int) -> bool:
        """Whether that step is one of those to look at."""
        return bool(self._due(step))

    def is_monitoring(self) -> bool:
        """Whether what happens now is looked at."""
        return self._monitored and not self._paused

    @contextmanager
    def no_monitor(self) -> Iterator[None]:
        """Look away: ``with monitor.no_monitor(): evaluate(model)``. May be nested."""
        self._paused += 1
        self._looking.pause()
        try:
            yield
        finally:
            self._paused -= 1
            if self.is_monitoring():
                self._looking.open()

    # Looking

    def monitor_activations(
        self, module: str | nn.Module, activations: Tensor, is_reference: bool = False
    ) -> None:
        """Compute the activation metrics on this tensor, as if the module had put it out.

        `is_reference` is known where `module` is one. Excluded modules and names are passed over.
        """
        name = self.name_of(module, is_reference)
        if not self.is_excluded(name):
            is_reference = is_reference or self.is_of_reference(module)
            self._looking.see_by_hand(name, activations, is_reference)

    def name_of(self, module: str | nn.Module, is_reference: bool = False) -> str:
        """A module's name; a text stands for itself."""
        if isinstance(module, str):
            return module
        is_reference = is_reference or self.is_of_reference(module)
        names = self.reference_names if is_reference else self.module_names
        name = names.get(module, self._left_out.get(module))
        if name is None:
            model = "reference" if is_reference else "watched"
            raise ConfigError(
                f"{type(module).__name__} is no module of the {model} model; give a name as text, "
                "or a module that was part of the model when it was set"
            )
        return name

    def is_of_reference(self, module: str | nn.Module) -> bool:
        """Whether that is a module of the reference model alone; a name does not tell."""
        return self._for_reference or (
            not isinstance(module, str)
            and module in self.reference_names
            and module not in self.module_names
        )

    def is_excluded(self, name: str) -> bool:
        """Whether nothing under that name is looked at."""
        return self._excluded.match(name) is not None

    def for_reference(self) -> ModuleMonitor:
        """The same monitor, for whoever speaks for the reference model: all its state is shared."""
        same = object.__new__(_ForReference)
        same.__dict__ = self.__dict__
        return same

    @property
    def _book(self) -> MetricBook:
        return self._reference_book if self._for_reference else self._looking.book

    def monitor_parameters(self) -> None:
        """Compute the parameter metrics, now."""
        if self.is_monitoring():
            self._looking.at_parameters()

    def monitor_gradients(self, before_clip: bool = False) -> None:
        """Compute the gradient metrics, now. `before_clip`: under a name of their own.

        Gradients a GradScaler has scaled up are logged as what they are without it.
        """
        if self.is_monitoring():
            self._looking.at_gradients(m.GRADIENT_BEFORE_CLIP if before_clip else m.GRADIENT)

    # Logging

    def log_scalar(
        self,
        key: str,
        value: float | Tensor,
        aggregation_fn: m.Function | None = None,
        force: bool = False,
    ) -> None:
        """Log a number under a name of your own; `force`: also in a step that is not monitored."""
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ConfigError(
                f"log_scalar({key!r}) takes one number, got a tensor of shape "
                f"{tuple(value.shape)}; log_tensor() takes any"
            )
        if self.is_monitoring() or (force and self.current_step is not None):
            self._book.add(key, value, aggregation_fn)

    def log_scalars(self, monitor_dict: Mapping[str, float | Tensor], force: bool = False) -> None:
        """Log several numbers."""
        for key, value in monitor_dict.items():
            self.log_scalar(key, value, force=force)

    def log_tensor(
        self, key: str, tensor: Tensor, aggregation_fn: m.Function | None = None
    ) -> None:
        """Log a tensor of any shape: its values are averaged, or given to the aggregation."""
        if self.is_monitoring():
            self._book.add(key, tensor, aggregation_fn)

    # Results

    def get_step_metrics(self) -> dict[str, float]:
        """The values of the step that ended last; empty when it was not monitored."""
        return dict(self._last)

    def get_all_metrics(self) -> dict[int, dict[str, float]]:
        """The values of all steps, read back from the run's file."""
        return self._keeping.everything()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all metrics into one file; `torchvitals.load_metrics(path)` reads it."""
        self._keeping.save(Path(path))

    def close(self) -> None:
        """Let go of the models and finish the run. Calling it again does nothing."""
        self._looking.close()
        dismiss(self.module_names, self, is_reference=False)
        dismiss(self.reference_names, self, is_reference=True)
        self._keeping.close()

    def _trouble(self, text: str) -> None:
        if self._logger is not None:
            self._logger.warning(text)
        self._keeping.note(self.current_step or 0, text)

    def __enter__(self) -> ModuleMonitor:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


class _ForReference(ModuleMonitor):
    """The monitor as modules of the reference model get it."""

    _for_reference = True
