"""A run's summary as text: one line a fact, values aligned, drawn lines at the right."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from torchvitals.views import words
from torchvitals.views.grids import Fact, TrendLine, fact_grid, paragraphs, trend_grid
from torchvitals.views.pace_text import epoch_facts, outlook_facts, pace_facts, progress_facts
from torchvitals.views.summary import RunSummary
from torchvitals.views.terminal import STATUS_STYLES
from torchvitals.views.trend_lines import evaluation_lines, loss_line, trend_line

NUM_SCALARS = 6
NUM_EVENTS = 4
NUM_FINDINGS = 2
SHORTEST_PATH = 16


def summary_text(run: RunSummary, width: int) -> RenderableType:
    """What the run is, how it went, what stands out."""
    steps = "no step yet" if run.last_step is None else words.plural(run.last_step, "step")
    facts = [steps, words.duration(run.duration_s), words.size(run.size_bytes)]
    if run.num_attempts > 1:
        facts.insert(1, words.plural(run.num_attempts, "attempt"))
    if run.at_step is not None:
        facts.append(f"as of step {words.count(run.at_step)}")
    # A finished run is as far as it will get, however many steps were planned.
    ended = run.status == "finished"
    progress = run.pace.progress
    far = epoch_facts(progress) if ended else progress_facts(progress, width)
    pace = [*outlook_facts(run.pace, width), *pace_facts(run.pace, width, every=_every(run))]
    return paragraphs(
        run_title(run.path, run.status, facts, width),
        fact_grid([*_what(run), *far], width),
        trend_grid(list(_numbers(run)), width),
        fact_grid(pace, width),
        fact_grid([*_standing_out(run), *event_facts(run.events)], width),
    )


def run_title(path: Path, status: str, facts: Sequence[str], width: int) -> Text:
    """Which run, how it is, and facts in short; a long path loses its beginning."""
    rest = f" · {' · '.join(facts)}"
    name = words.tail(str(path), max(width - len(status) - len(rest) - 2, SHORTEST_PATH))
    return Text.assemble((name, "bold"), "  ", (status, STATUS_STYLES.get(status, "red")), rest)


def event_facts(events: Sequence[str], num: int = NUM_EVENTS) -> list[Fact]:
    """The last few."""
    return [("event" if not at else "", text) for at, text in enumerate(events[-num:])]


def _every(run: RunSummary) -> int | None:
    every = run.watch.get("every")
    return every if isinstance(every, int) else None


def _what(run: RunSummary) -> Iterator[tuple[str, str]]:
    for model in run.models:
        name = model.type if model.name in ("", model.type) else f"{model.name} ({model.type})"
        tensors = words.plural(model.num_tensors, "tensor")
        yield "model", f"{name}, {words.amount(model.num_parameters)} parameters in {tensors}"
    if run.device:
        yield "device", ", ".join(_device(run))
    if run.command:
        yield "command", command_words(run.command)
    if run.git:
        where = f"{str(run.git.get('commit', ''))[:10]} on {run.git.get('branch', '?')}"
        yield "code", where + (", with local changes" if run.git.get("dirty") else "")
    if run.started is not None:
        when = datetime.fromtimestamp(run.started).strftime("%Y-%m-%d %H:%M:%S")
        yield "started", f"{when} ({words.ago(run.age_s or 0.0)})"
    every = run.watch.get("every")
    often = "" if every is None else " (all)" if every == 1 else f" (one in {every})"
    measured = (
        f"{words.plural(run.num_measured, 'step')}{often}, {words.count(run.num_columns)} columns"
    )
    if run.overhead_s is not None:
        measured += f"; {1e3 * run.overhead_s:.2g} ms each"
    if run.overhead_frac is not None:
        measured += f", {100 * run.overhead_frac:.2g} % of the time"
    yield "measured", measured


def command_words(command: Sequence[str]) -> str:
    """As it was typed: without the interpreter's folder, and an installed script by its name."""
    program, *rest = command
    if rest and Path(rest[0]).is_absolute() and Path(rest[0]).parent == Path(program).parent:
        return shlex.join([Path(rest[0]).name, *rest[1:]])
    return shlex.join([Path(program).name, *rest])


def _device(run: RunSummary) -> Iterator[str]:
    gpus = run.device.get("gpus") or []
    if gpus:
        yield gpus[0] if len(gpus) == 1 else f"{len(gpus)} × {gpus[0]}"
    if run.device.get("threads"):
        yield f"CPU with {words.plural(int(run.device['threads']), 'thread')}"
    if run.device.get("host"):
        yield f"on {run.device['host']}"


def _numbers(run: RunSummary) -> Iterator[TrendLine]:
    if run.loss is not None:
        yield loss_line(run.loss, run.pace.outlook)
    yield from evaluation_lines(run.pace.evaluations)
    if run.gradient_norm is not None:
        yield trend_line("gradient norm", run.gradient_norm, "all layers, before clipping")
    if run.clip_ratio is not None:
        clipped = run.clip_ratio.last > 1
        text = "norm / limit: scaled down" if clipped else "norm / limit: not clipped now"
        yield trend_line("clip ratio", run.clip_ratio, text)
    if run.update_ratio is not None:
        yield trend_line("update ratio", run.update_ratio, "‖Δw‖/‖w‖, median of the layers")
    if run.learning_rate is not None:
        yield trend_line("learning rate", run.learning_rate, "of the first parameter group")
    for one in run.scalars[:NUM_SCALARS]:
        yield trend_line(one.name, one)
    if len(run.scalars) > NUM_SCALARS:
        more = len(run.scalars) - NUM_SCALARS
        yield TrendLine("", "", "", (f"and {more} more (--kind scalar)",))


def _guarded(counts: Mapping[str, int]) -> Iterator[str]:
    for done, (one, many) in {
        "skip": ("step skipped", "steps skipped"),
        "clip": ("step clipped", "steps clipped"),
        "rollback": ("rollback", "rollbacks"),
        "accept": ("new level", "new levels"),
        "warn": ("warning", "warnings"),
        "stop": ("stop", "stops"),
        "scaler": ("step skipped by the GradScaler", "steps skipped by the GradScaler"),
    }.items():
        if counts.get(done):
            yield f"{counts[done]} {one if counts[done] == 1 else many}"


def _standing_out(run: RunSummary) -> Iterator[tuple[str, str]]:
    for at, text in enumerate(run.findings[:NUM_FINDINGS]):
        yield ("finding" if not at else ""), text
    counts = [
        f"{num} {word}"
        for num, word in (
            (run.num_frozen, "frozen"),
            (run.num_vanishing, "vanishing"),
            (run.num_exploding, "exploding"),
        )
        if num is not None
    ]
    if counts:
        yield "layers", " · ".join(counts)
    if run.guard:
        yield "guard", " · ".join(_guarded(run.guard))
    for at, bad in enumerate(run.not_finite):
        more = len(bad.first_sites) - 1
        where = f"{bad.first_sites[0]}{f' and {more} more' if more else ''}"
        text = f"{words.plural(bad.num_sites, bad.kind)}, first at step {bad.first_step} in {where}"
        yield "not finite" if not at else "", text
    if not run.not_finite and run.num_measured:
        yield "not finite", "none"
