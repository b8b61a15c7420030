"""`watch()`: attach a monitor to a training with one line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from torchvitals.alerts.alerts import Alerts, make_alerts
from torchvitals.alerts.urls import redacted
from torchvitals.diagnosis import Diagnostician
from torchvitals.guard import Guard
from torchvitals.monitor.arguments import (
    check_choice,
    check_flags,
    check_kinds,
    check_optimizers,
    check_weights,
    checked_guard,
    listed_optimizers,
    made_reference,
    modules_of,
    named_models,
    run_folder,
    selection_of,
    whole,
    whole_or_none,
)
from torchvitals.monitor.changes import Changes
from torchvitals.monitor.environment import describe_run
from torchvitals.monitor.monitor import Monitor
from torchvitals.monitor.plugged import Given as GivenProbe
from torchvitals.monitor.plugged import make_plugged
from torchvitals.monitor.probe_set import Probes
from torchvitals.monitor.ranks import Ranks
from torchvitals.monitor.run_path import default_path
from torchvitals.monitor.steps import EXACT_EVERY, Steps
from torchvitals.probes.activations import Activations
from torchvitals.probes.attention import Attention
from torchvitals.probes.compiled import is_compiled
from torchvitals.probes.criterion import Criterion
from torchvitals.probes.gradients import Gradients
from torchvitals.probes.inputs import Inputs
from torchvitals.probes.optimizer_state import OptimizerState
from torchvitals.probes.scaler import Scaler
from torchvitals.probes.tree import Tree
from torchvitals.probes.updates import Updates
from torchvitals.probes.weights import Weights
from torchvitals.probes.wiring import Wiring
from torchvitals.record import (
    Finding,
    Key,
    RunExists,
    RunInfo,
    RunLocked,
    Severity,
    StoreError,
)
from torchvitals.rules.thresholds import Thresholds
from torchvitals.sinks.catalogue import Given as GivenSink
from torchvitals.sinks.catalogue import make_sinks
from torchvitals.sinks.fan import Fan
from torchvitals.sinks.sink import Sink
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
    exact_every: int = EXACT_EVERY,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    activations: bool | str = True,
    attention: bool = False,
    inputs: bool = True,
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
    replicas_every: int | None = None,
    reference: nn.Module | Literal["init"] | None = None,
    guard: Guard | str | bool | None = None,
    sinks: GivenSink | Sequence[GivenSink] | None = None,
    alerts: str | Alerts | None = None,
    probes: GivenProbe | Sequence[GivenProbe] | None = None,
    backend: str = "auto",
    diagnose: bool = True,
    on_finding: Callable[[Finding], None] | None = None,
    stop_on: Literal["warning", "error"] | None = None,
    thresholds: Thresholds | Mapping[str, Any] | None = None,
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
        exact_every: so many steps apart the outputs of layers are read whole. In monitored steps
            between, two cache lines in 34 of each large one are read; its largest and smallest
            value and its NaN and Inf counts are then left out, unless some of these are seen.
            With `every` at least as large, all are exact; 1 reads them whole each time.
        include, exclude: regular expressions on the names of parameters and modules.
        activations: of all layers (modules without children), of none, or of the modules whose
            names match this regular expression.
        attention: entropy, largest logit and sizes of each attention head, seen in calls of
            `F.scaled_dot_product_attention` and in `nn.MultiheadAttention`.
        inputs: what goes into the model, what comes out, and what loss functions are given.
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
        replicas_every: steps between two comparisons of the ranks' copies of the parameters; 0 for
            never. By default 1000 where the model is a DistributedDataParallel or sharded.
        reference: a model that difference metrics compare with, or "init": a copy of the model now.
        guard: judge each step before it is made: "skip", "clip", "rollback", "stop", "warn", True
            (the default `Guard()`), or a `Guard` of your own.
        sinks: where rows are forwarded to: names ("tensorboard", "wandb", "jsonl:rows.jsonl") or
            objects of `torchvitals.sinks`; they write in the background.
        alerts: who is told of findings: the least level ("warning", "error"), or `Alerts(…)`.
        probes: further probes: names of installed ones, or objects with `measure(step)`.
        backend: "native", "triton", "torch", or the best there is.
        diagnose: look for what is wrong beside the training, within 1 % of its time, and say so.
        on_finding: called with each finding when it opens, on the recorder's thread.
        stop_on: end the training with StopTraining at a finding this bad or worse.
        thresholds: other limits than the defaults (docs/thresholds.md).
        ui: show the run live in the browser: starts the page in a process of its own, prints its
            address, and ends it with the run. Needs ``torchvitals[ui]``.

    With several processes (torch.distributed initialised) all call watch(); rank 0 writes the run.

    Raises:
        ConfigError: an argument is wrong.
        RunExists, RunLocked: the run is there already, or another process is writing it.
    """
    models, optimizers = named_models(model), listed_optimizers(optimizer)
    check_flags(
        attention=attention, inputs=inputs, gradients=gradients, parameters=parameters,
        optimizer_state=optimizer_state, eval_activations=eval_activations, resume=resume,
        clocks=clocks, machine=machine, diagnose=diagnose, ui=ui,
    )  # fmt: skip
    check_choice("histograms", histograms, "sampled", "full", False, also=True)
    check_choice("updates", updates, "sampled", "exact", False)
    check_choice("stop_on", stop_on, "warning", "error", None)
    sample_size = whole("sample_size", sample_size, 1)
    samples_every = whole("samples_every", samples_every, 1)
    total_steps = whole_or_none("total_steps", total_steps, 1)
    start_step = whole_or_none("start_step", start_step, 0)
    replicas_every = whole_or_none("replicas_every", replicas_every, 0)
    check_kinds(backend=backend, thresholds=thresholds, on_finding=on_finding)
    path = run_folder(run)
    limits = Thresholds.make(thresholds)
    chosen_sinks, chosen_alerts = make_sinks(sinks), make_alerts(alerts)
    plugged = make_plugged(probes)
    stride = _STRIDES[histograms]
    chosen_backend = choose_backend(backend)
    tree = Tree(models)
    Steps(every, len(optimizers), exact_every=exact_every)
    selection, modules = selection_of(tree, include, exclude), modules_of(tree, activations)
    check_weights(tree)
    check_optimizers(tree, optimizers)
    guarding = checked_guard(guard, optimizers)

    settings = {
        "every": every, "exact_every": exact_every, "activations": activations,
        "attention": attention, "inputs": inputs, "gradients": gradients,
        "parameters": parameters, "updates": updates, "optimizer_state": optimizer_state,
        "histograms": histograms, "sample_size": sample_size, "backend": chosen_backend.name,
        "total_steps": total_steps, "clocks": clocks, "machine": machine,
        "samples_every": samples_every, "replicas_every": replicas_every,
        "guard": None if guarding is None else guarding.describe(),
        "sinks": [getattr(sink, "name", type(sink).__name__) for sink in chosen_sinks],
        "alerts": chosen_alerts.level.value if chosen_alerts is not None else None,
        "probes": sorted(plugged.probes), "diagnose": diagnose,
    }  # fmt: skip
    path = path or default_path(next(iter(models.values())))
    info = describe_run(path.name, tree, optimizers, config=config, watch=settings)
    if chosen_alerts is not None:
        info = _without_secrets(info, chosen_alerts)
    chosen = [
        index
        for index, site in enumerate(tree.parameters)
        if site.name in selection and not site.parameter.is_meta
    ]
    watched_modules = [site for site in modules if site.name in selection]
    compiled = any(is_compiled(module) for model in models.values() for module in model.modules())

    def make_probes(
        on_error: Callable[[str, Exception], None], on_compile: Callable[[], None]
    ) -> Probes:
        # One without elements has nothing to measure.
        trainable = [
            i
            for i in chosen
            if (parameter := tree.parameters[i].parameter).requires_grad and parameter.numel()
        ]
        criterion = None
        if inputs and not compiled:
            criterion = Criterion(list(models.values()), on_error=partial(on_error, Criterion.name))
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
                models.values(),
                stride=stride,
                eval_mode=eval_activations,
                in_graph=compiled,
                on_error=partial(on_error, "activations"),
                on_compile=on_compile,
            )
            if watched_modules
            else None,
            attention=Attention(
                {site.module: site.name for site in tree.modules if site.name in selection},
                on_error=partial(on_error, "attention"),
            )
            if attention and not compiled
            else None,
            inputs=Inputs(
                models,
                chosen_backend,
                on_error=partial(on_error, Inputs.name),
                on_compile=criterion.stop,
            )
            if criterion is not None
            else None,
            criterion=criterion,
            wiring=Wiring(tree, trainable, optimizers) if gradients and trainable else None,
            weights=Weights(tree, trainable, every) if parameters and trainable else None,
            scaler=Scaler() if optimizers else None,
        )

    compared = made_reference(reference, models)
    ranks = Ranks.join()
    writer = _open_writer(path, info, resume=resume) if ranks.is_writer else None
    last = start_step if start_step is not None else (writer.last_step if writer else None) or 0
    monitor = Monitor(
        path=path,
        writer=writer,
        optimizers=optimizers,
        backend=chosen_backend,
        steps=Steps(every, len(optimizers), last, exact_every=exact_every),
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
        replicas_every=replicas_every,
        names={site.module: site.name for site in tree.modules if site.name in selection},
        named_parameters={tree.parameters[i].name: tree.parameters[i].parameter for i in chosen},
        reference=compared,
        changes=Changes(models, tree, optimizers),
        guard=guarding,
        next_epoch=_next_epoch(path, last) if resume and writer is not None else 1,
        make_diagnostician=(
            partial(
                Diagnostician,
                partial(open_run, path),
                thresholds=limits,
                on_finding=on_finding,
                stop_on=None if stop_on is None else Severity(stop_on),
            )
            if diagnose and writer is not None
            else None
        ),
    )
    monitor._thresholds = limits
    monitor._logbook.by_hand = None if optimizers else monitor._probes
    plugged.open(models, optimizers)
    monitor._plugged = plugged
    if ranks.is_writer:
        _forward(monitor, info, chosen_sinks, chosen_alerts)
    if ui:
        monitor._open_page()
    return monitor


def _forward(monitor: Monitor, info: RunInfo, sinks: Sequence[Sink], alerts: Alerts | None) -> None:
    """Let sinks and alerts hear what goes into the store."""
    if sinks:
        for sink in sinks:
            if hasattr(sink, "notice"):
                sink.notice()

        def tell(name: str, text: str) -> None:
            monitor._logbook.event("sink", text, {"sink": name})  # while it closes, too

        monitor._recorder.listen(Fan(sinks, info, monitor.path, tell))
    if alerts is not None:
        alerts.begin(info.name)
        monitor._logbook.secrets = alerts.secrets
        monitor._recorder.listen(alerts)


def _without_secrets(info: RunInfo, alerts: Alerts) -> RunInfo:
    """Addresses on the command line or in the user's settings are not kept."""
    command, config = redacted((info.command, info.config), alerts.secrets)
    return replace(info, command=command, config=config)


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
