"""A run's status as text: short enough to stay on the screen while the run goes on."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from torchvitals.views import words
from torchvitals.views.grids import Fact, TrendLine, fact_grid, paragraphs, trend_grid
from torchvitals.views.pace_text import (
    outlook_facts,
    pace_facts,
    progress_facts,
)
from torchvitals.views.status import RunStatus
from torchvitals.views.summary_text import event_facts, run_title
from torchvitals.views.trend_lines import evaluation_lines, loss_line, trend_line

NUM_EVENTS = 3
SHORTEST_SPARK, LONGEST_SPARK = 16, 40
BESIDE_SPARK = 70
"""Columns that the name, the values and the words beside a drawn line take."""


def status_text(run: RunStatus, width: int) -> RenderableType:
    """How far, how well, how fast, and what happened last."""
    return paragraphs(
        run_title(run.path, run.status, list(_title(run)), width),
        fact_grid(progress_facts(run.pace.progress, width, total=False), width),
        trend_grid(list(_numbers(run)), width),
        fact_grid([*_standing_out(run), *outlook_facts(run.pace, width)], width),
        fact_grid(pace_facts(run.pace, width, every=run.every), width),
        fact_grid(event_facts(run.events, NUM_EVENTS), width),
    )


def spark_width(width: int) -> int:
    """Blocks of a drawn line on a screen of that width."""
    return min(max(width - BESIDE_SPARK, SHORTEST_SPARK), LONGEST_SPARK)


def _title(run: RunStatus) -> Iterator[str]:
    progress = run.pace.progress
    if progress.step is None:
        yield "no step yet"
    else:
        of = "" if progress.total_steps is None else f" of {words.count(progress.total_steps)}"
        yield f"step {words.count(progress.step)}{of}"
    yield words.duration(run.duration_s)
    if progress.silent_s is not None:
        yield f"silent for {words.duration(progress.silent_s)}"


def _numbers(run: RunStatus) -> Iterator[TrendLine]:
    if run.loss is not None:
        yield loss_line(run.loss, run.pace.outlook)
    yield from evaluation_lines(run.pace.evaluations)
    if run.learning_rate is not None:
        yield trend_line("learning rate", run.learning_rate, "of the first parameter group")


def _standing_out(run: RunStatus) -> Iterator[Fact]:
    counts = [f"{num} {word}" for word, num in run.layers.items() if num]
    if counts:
        yield "layers", " · ".join(counts)
