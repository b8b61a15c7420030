"""`watch()`: attach a monitor to a training with one line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from torchvitals.monitor.environment import describe_run
from torchvitals.monitor.monitor import Monitor
from torchvitals.monitor.probe_set import Probes
from torchvitals.monitor.ranks import Ranks
from torchvitals.monitor.reference import copy_of
from torchvitals.monitor.run_path import default_path
from torchvitals.monitor.steps import Steps
from torchvitals.probes.activations import Activations, is_compiled
from torchvitals.probes.attention import Attention
from torchvitals.probes.gradients import Gradients
from torchvitals.probes.optimizer_state import OptimizerState
from torchvitals.probes.tree import Selection, Tree, compile_patterns, leaves
from torchvitals.probes.updates import Updates
from torchvitals.record import ConfigError, Key, RunExists, RunInfo, RunLocked, StoreError
from torchvitals.stats.backend import SAMPLE_STRIDE, choose_backend
from torchvitals.store.history import open_run
from torchvitals.store.writer import RunWriter

log = logging.getLogger("torchvitals")

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module]
Optimizers = Optimizer | Sequence[Optimizer] | None

_STRIDES = {False: 0, "sampled": SAMPLE_STRIDE, "full": 1, True: SAMPLE_STRIDE}


def watch(
    model: Models,
    optimizer: Optimizers = None,
    *,
    run: str | Path | None = None,
    every: int = 10,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    activations: bool | str = True,
    attention: bool = False,
    gradients: bool = True,
    parameters: bool = True,
    updates: Literal["sampled", "exact", False] = "sampled",
    optimizer_state: bool = True,
    histograms: Literal["sampled", "full", False] = "sampled",
    sample_size: int = 1024,
    eval_activations: bool = False,
    config: Any = None,
    resume: bool = False,
    start_step: int | None = None,
    total_steps: int | None = None,
    clocks: bool = True,
    machine: bool = True,
    samples_every: int = 100,
    reference: nn.Module | Literal["init"] | None = None,
    backend: str = "auto",
    ui: bool = False,
) -> Monitor:
    """Watch a training from the inside and keep what is seen in one file.

        with torchvitals.watch(model, optimizer, run="runs/gpt") as monitor:
            for batch in loader:
                loss = model(batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                monitor.log(loss=loss)

    Args:
        model: a module, a list of modules, or a dict of named ones (a GAN).
        optimizer: one or several; without any, end each step with `monitor.step()`.
        run: the run's folder; by default ``runs/<date>-<name of the model>``.
        every: measure the first step and every that-many-th one.
        include, exclude: regular expressions on the names of parameters and modules.
        activations: of all layers (modules without children), of none, or of the modules whose
            names match this regular expression.
        attention: entropy, largest logit and sizes of each attention head, seen in calls of
            `F.scaled_dot_product_attention` and in `nn.MultiheadAttention`.
        gradients, parameters: whether to measure them.
        updates: "sampled" looks at `sample_size` elements of each weight, "exact" at all of them
            (and keeps a copy of the weights), False at none.
        optimizer_state: learning rate and weight decay of each group are always kept; True adds the
            health of Adam's second moments.
        histograms: "sampled" counts about an eighth of a tensor, "full" all of it.
        sample_size: elements of a weight that "sampled" updates look at.
        eval_activations: see modules in eval mode too.
        config: the run's own settings to keep (a dict, dataclass or namespace).
        resume: go on with a run that is there already; steps continue after its last one.
        start_step: steps done before this attempt, if the checkpoint knows better than the file.
        total_steps: how many steps there will be, for the time left.
        clocks: where each step's time goes, throughput, model FLOPs, gradient noise scale.
        machine: sample memory, processors and accelerators from the background.
        samples_every: steps between two reports of the losses by category (`log_samples`).
        reference: a model that difference metrics compare with, or "init": a copy of the model now.
        backend: "native", "torch", or the best there is.
        ui: show the run live in the browser: starts the page in a process of its own, prints its
            address, and ends it with the run. Needs ``torchvitals[ui]``.

    With several processes (torch.distributed initialised) all call watch(); rank 0 writes the run.

    Raises:
        ConfigError: an argument is wrong.
        RunExists, RunLocked: the run is there already, or another process is writing it.
    """
    models = _models(model)
    optimizers = _optimizers(optimizer)
    if histograms not in _STRIDES:
        raise ConfigError(f"histograms must be 'sampled', 'full' or False, got {histograms!r}")
    if updates not in {"sampled", "exact", False}:
        raise ConfigError(f"updates must be 'sampled', 'exact' or False, got {updates!r}")
    if samples_every < 1:
        raise ConfigError(f"samples_every must be at least 1, got {samples_every}")
    if total_steps is not None and total_steps < 1:
        raise ConfigError(f"total_steps must be at least 1, got {total_steps}")
    if sample_size < 1:
        raise ConfigError(f"sample_size must be at least 1, got {sample_size}")
    stride = _STRIDES[histograms]
    chosen_backend = choose_backend(backend)
    tree = Tree(models)
    selection = Selection(include, exclude)
    Steps(every, len(optimizers))  # a wrong `every` speaks up before a folder is made
    _check_optimizers(tree, optimizers)

    settings = {
        "every": every, "activations": activations, "attention": attention,
        "gradients": gradients,
        "parameters": parameters, "updates": updates, "optimizer_state": optimizer_state,
        "histograms": histograms, "sample_size": sample_size, "backend": chosen_backend.name,
        "total_steps": total_steps, "clocks": clocks, "machine": machine,
        "samples_every": samples_every,
    }  # fmt: skip
    path = Path(run) if run is not None else default_path(next(iter(models.values())))
    info = describe_run(path.name, tree, optimizers, config=config, watch=settings)
    chosen = [
        index
        for index, site in enumerate(tree.parameters)
        if site.name in selection and not site.parameter.is_meta
    ]
    watched_modules = [
        site
        for site in (leaves(tree) if activations is True else _matching(tree, activations))
        if site.name in selection
    ]
    compiled = any(is_compiled(module) for model in models.values() for module in model.modules())

    def make_probes(
        on_error: Callable[[str, Exception], None], on_compile: Callable[[], None]
    ) -> Probes:
        trainable = [i for i in chosen if tree.parameters[i].parameter.requires_grad]
        return Probes(
            gradients=Gradients(tree, trainable, chosen_backend, stride)
            if gradients and trainable
            else None,
            updates=Updates(
                tree,
                trainable,
                chosen_backend,
                mode=updates if optimizers and updates else None,
                parameters=parameters,
                stride=stride,
                sample_size=sample_size,
            )
            if (parameters or (updates and optimizers)) and trainable
            else None,
            optimizer_state=OptimizerState(optimizers, tree, trainable, moments=optimizer_state)
            if optimizers
            else None,
            activations=Activations(
                watched_modules,
                {site.module for site in tree.modules},
                chosen_backend,
                stride=stride,
                eval_mode=eval_activations,
                on_error=partial(on_error, "activations"),
                on_compile=on_compile,
            )
            if watched_modules and not compiled
            else None,
            attention=Attention(
                {site.module: site.name for site in tree.modules if site.name in selection},
                on_error=partial(on_error, "attention"),
            )
            if attention and not compiled
            else None,
        )

    compared = _reference(reference, models)
    ranks = Ranks.join()
    writer = _open_writer(path, info, resume=resume) if ranks.is_writer else None
    last = start_step if start_step is not None else (writer.last_step if writer else None) or 0
    monitor = Monitor(
        path=path,
        writer=writer,
        optimizers=optimizers,
        backend=chosen_backend,
        steps=Steps(every, len(optimizers), last),
        num_parameters=len(tree.parameters),
        make_probes=make_probes,
        models=list(models.values()),
        parameters=[
            tree.parameters[i].parameter
            for i in chosen
            if gradients and tree.parameters[i].parameter.requires_grad
        ],
        ranks=ranks,
        clocks=clocks,
        machine=machine,
        samples_every=samples_every,
        names={site.module: site.name for site in tree.modules if site.name in selection},
        named_parameters={tree.parameters[i].name: tree.parameters[i].parameter for i in chosen},
        reference=compared,
        next_epoch=_next_epoch(path, last) if resume and writer is not None else 1,
    )
    if compiled and watched_modules:
        monitor.note_not_seen()
    if ui:
        monitor._open_page()
    return monitor


def _models(model: Models) -> dict[str, nn.Module]:
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, Mapping):
        models = {str(name): module for name, module in model.items()}
    else:
        models = {f"model{index}": module for index, module in enumerate(_iterable(model))}
    for name, module in models.items():
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model must be a torch.nn.Module, a list or a dict of them, got "
                f"{type(module).__name__}{f' for {name!r}' if name else ''}"
            )
    if not models:
        raise ConfigError("model is an empty list: there is nothing to watch")
    return {"": next(iter(models.values()))} if len(models) == 1 else models


def _optimizers(optimizer: Optimizers) -> list[Optimizer]:
    if optimizer is None:
        return []
    listed = [optimizer] if isinstance(optimizer, Optimizer) else list(_iterable(optimizer))
    for one in listed:
        if not isinstance(one, Optimizer):
            raise ConfigError(
                f"optimizer must be a torch.optim.Optimizer or a list of them, got "
                f"{type(one).__name__}"
            )
    return listed


def _iterable(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) else [value]


def _check_optimizers(tree: Tree, optimizers: Sequence[Optimizer]) -> None:
    """Warn when an optimizer holds none of the model's parameters: a wiring fault."""
    ours = {id(site.parameter) for site in tree.parameters}
    for optimizer in optimizers:
        if not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
            log.warning(
                "torchvitals: %s holds none of the watched model's parameters; was it made for "
                "another model, or before this one was replaced?",
                type(optimizer).__name__,
            )


def _matching(tree: Tree, pattern: bool | str) -> list[Any]:
    if pattern is False:
        return []
    if not isinstance(pattern, str):
        raise ConfigError(
            f"activations must be True, False or a regular expression, got {pattern!r}"
        )
    (compiled,) = compile_patterns("activations", pattern)
    return [site for site in tree.modules if compiled.match(site.name)]


def _reference(
    choice: nn.Module | Literal["init"] | None, models: Mapping[str, nn.Module]
) -> nn.Module | None:
    if choice is None or isinstance(choice, nn.Module):
        return choice
    if choice != "init":
        raise ConfigError(f'reference must be a model or "init", got {choice!r}')
    if len(models) > 1:
        raise ConfigError(
            'reference="init" takes one model; give the reference of several yourself'
        )
    return copy_of(next(iter(models.values())))


def _next_epoch(path: Path, last: int) -> int:
    """The epoch after the last one that came to its end: one that was cut off begins anew."""
    with open_run(path) as history:
        if not history.keys("epoch", "^run$", "number"):
            return 1
        numbers = history.series(Key("epoch", "run", "number"), stop=last + 1).values
        return int(numbers[-1]) + 1 if len(numbers) else 1


def _open_writer(path: Path, info: RunInfo, *, resume: bool) -> RunWriter | None:
    try:
        return RunWriter.create(path, info, resume=resume)
    except (RunExists, RunLocked):
        raise
    except StoreError as error:
        log.warning(
            "torchvitals: this run can't be stored (%s). Training goes on without a record.", error
        )
        return None
