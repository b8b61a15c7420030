"""A run's summary as text: one line a fact, values aligned, drawn lines at the right."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchvitals.views import words
from torchvitals.views.columns import Trend
from torchvitals.views.summary import RunSummary
from torchvitals.views.terminal import STATUS_STYLES, trend_words

NUM_SCALARS = 6
NUM_EVENTS = 4


def summary_text(run: RunSummary, width: int) -> RenderableType:
    """What the run is, how it went, what stands out."""
    steps = "no step yet" if run.last_step is None else words.plural(run.last_step, "step")
    facts = [steps, words.duration(run.duration_s), words.size(run.size_bytes)]
    if run.num_attempts > 1:
        facts.insert(1, words.plural(run.num_attempts, "attempt"))
    title = Text.assemble(
        (str(run.path), "bold"), "  ", (run.status, STATUS_STYLES.get(run.status, "red")), " · ",
        " · ".join(facts),
    )  # fmt: skip
    if run.at_step is not None:
        title.append(f" · as of step {words.count(run.at_step)}")
    parts: list[RenderableType] = [title, Text(""), _pairs(list(_what(run)), width)]
    numbers = list(_numbers(run))
    if numbers:
        parts += [Text(""), _trends(numbers)]
    standing_out = list(_standing_out(run))
    if standing_out:
        parts += [Text(""), _pairs(standing_out, width)]
    if run.events:
        shown = [
            ("event" if not at else "", text) for at, text in enumerate(run.events[-NUM_EVENTS:])
        ]
        parts.append(_pairs(shown, width))
    return Group(*parts)


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


def _numbers(run: RunSummary) -> Iterator[tuple[str, str, str, str]]:
    """(name, drawn, first → last, in words)."""
    if run.loss is not None:
        best = ""
        if run.loss.low is not None and run.loss.low_step is not None:
            best = f"best {words.number(run.loss.low)} at step {words.count(run.loss.low_step)}"
        yield _line(run.loss.name, run.loss, best)
    if run.gradient_norm is not None:
        yield _line("gradient norm", run.gradient_norm, "all layers, before clipping")
    if run.clip_ratio is not None:
        clipped = run.clip_ratio.last > 1
        text = "norm / limit: scaled down" if clipped else "norm / limit: not clipped now"
        yield _line("clip ratio", run.clip_ratio, text)
    if run.update_ratio is not None:
        yield _line("update ratio", run.update_ratio, "‖Δw‖/‖w‖, median of the layers")
    if run.learning_rate is not None:
        yield _line("learning rate", run.learning_rate, "of the first parameter group")
    for one in run.scalars[:NUM_SCALARS]:
        yield _line(one.name, one, "")
    if len(run.scalars) > NUM_SCALARS:
        more = len(run.scalars) - NUM_SCALARS
        yield "", "", "", f"and {more} more (--kind scalar)"


def _line(name: str, one: Trend, text: str) -> tuple[str, str, str, str]:
    if one.num_bad:
        first = f"not finite from step {words.count(one.first_bad_step or 0)} on"
        once = (
            one.num_bad < one.num_values and one.last == one.last and abs(one.last) != float("inf")
        )
        text = f"not finite {words.plural(one.num_bad, 'time')}" if once else first
    return name, one.spark, trend_words(one), text


def _standing_out(run: RunSummary) -> Iterator[tuple[str, str]]:
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
    for at, bad in enumerate(run.not_finite):
        more = len(bad.first_sites) - 1
        where = f"{bad.first_sites[0]}{f' and {more} more' if more else ''}"
        text = f"{words.plural(bad.num_sites, bad.kind)}, first at step {bad.first_step} in {where}"
        yield "not finite" if not at else "", text
    if not run.not_finite and run.num_measured:
        yield "not finite", "none"


def _pairs(pairs: list[tuple[str, str]], width: int) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=13)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=width - 15)
    for name, text in pairs:
        grid.add_row(name, text)
    return grid


def _trends(lines: list[tuple[str, str, str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=13)
    # Only the words at the end may be cut.
    for at in (1, 2):
        grid.add_column(no_wrap=True, min_width=max(len(line[at]) for line in lines))
    grid.add_column(no_wrap=True, overflow="ellipsis", style="dim")
    for line in lines:
        grid.add_row(*line)
    return grid
