"""What `vitals watch` says: whom it follows, findings that open and are over, the end.

One line at the bottom of a terminal shows that the run goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from torchvitals.record import Event, Finding
from torchvitals.store import Attempt
from torchvitals.views import words
from torchvitals.views.bars import progress_bar
from torchvitals.views.findings_text import counts, finding_lines, where
from torchvitals.views.grids import Fact, fact_grid, paragraphs
from torchvitals.views.progress import Progress
from torchvitals.views.summary_text import run_title
from torchvitals.views.terminal import STATUS_STYLES

BAR = 24
"""Blocks of the bar."""
STALLED = "stalled"
"""The rule that says so."""


def attached_text(
    path: Path, status: str, progress: Progress, facts: Sequence[Fact], width: int
) -> RenderableType:
    """Which run, how far it is, and by what it is judged."""
    title = run_title(path, status, [step_words(progress)], width)
    return paragraphs(title, fact_grid(facts, width))


def facts_of(
    attempt: Attempt, *, is_here: bool, asks: bool, stall: str, stale_s: float
) -> Iterator[Fact]:
    """By what it is judged."""
    if is_here:
        yield "process", f"{attempt.pid} on this machine: its death shows at once"
    else:
        yield "process", f"{attempt.pid} on {attempt.host}, which can't be asked from here"
        yield "", f"taken for dead after {stale_s:.0f} s without a heartbeat in its file"
    yield "findings", "of the rules, asked from here" if asks else "of its own diagnosis"
    yield "stalled", f"after {stall}"


def opened_text(event: Event, width: int) -> RenderableType:
    """A finding with its explanation and its fix, the time before it."""
    one = Finding.from_json(event.data["finding"])
    title, *rest = finding_lines(one, width, full=False)
    assert isinstance(title, Text)
    head = Text.assemble((_clock(event.time), "dim"), "  ", title)
    head.truncate(width, overflow="ellipsis")
    return Group("", head, *rest)


def resolved_text(event: Event, width: int) -> RenderableType:
    """That a finding is over, since when, and why."""
    one = Finding.from_json(event.data["finding"])
    _, _, why = event.text.partition(": ")
    since = one.resolved_step if one.resolved_step is not None else one.last_step
    head = Text.assemble(
        (_clock(event.time), "dim"),
        "  ",
        (f"✓ resolved  {one.name}", "green"),
        f"  {where(one)} · {why or 'over'} · at step {words.count(since)}",
    )
    head.truncate(width, overflow="ellipsis")
    return Group("", head)


def ended_text(
    path: Path,
    status: str,
    progress: Progress,
    found: Sequence[Finding],
    *,
    now: float,
    took_s: float | None,
    error: str,
    width: int,
) -> RenderableType:
    """How the run ended, what is still wrong with it, and where to read on."""
    facts = [step_words(progress), words.duration(took_s)]
    if found or status == "finished":
        facts.append(counts(found))
    head = Text.assemble(
        (_clock(now), "dim"),
        "  ",
        (status, STATUS_STYLES.get(status, "red")),
        f" · {' · '.join(facts)}",
    )
    head.truncate(width, overflow="ellipsis")
    lines: list[RenderableType] = ["", head]
    if error:
        lines.append(Text(f"  {error}", overflow="ellipsis", no_wrap=True))
    if found or status != "finished":
        lines.append(Text(f"  vitals diagnose {path}", "dim"))
    return Group(*lines)


def going_text(
    progress: Progress, found: Sequence[Finding], width: int, *, now: float
) -> RenderableType:
    """The line at the bottom: the run goes on, or has been silent for so long."""
    hangs = any(one.name == STALLED for one in found)
    silent_s = progress.silent_s
    if hangs and progress.last_time is not None:
        silent_s = now - progress.last_time
    line = Text.assemble(("● ", "cyan" if silent_s is None else "bold red"))
    facts = [step_words(progress)]
    if progress.frac is not None:
        line.append_text(progress_bar(progress.frac, min(BAR, max(width - 60, 8)))).append("  ")
        facts.append(f"{int(100 * progress.frac)} %")
    if silent_s is not None:
        facts.append(f"silent for {words.duration(silent_s)}")
    elif progress.eta_s is not None:
        facts.append(f"{words.duration(progress.eta_s)} left")
    if found:
        facts.append(counts(found))
    line.append(" · ".join(facts))
    line.truncate(width, overflow="ellipsis")
    return Group("", line)


def step_words(progress: Progress) -> str:
    """``step 285 of 600``."""
    if progress.step is None:
        return "no step yet"
    of = "" if progress.total_steps is None else f" of {words.count(progress.total_steps)}"
    return f"step {words.count(progress.step)}{of}"


def _clock(when: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(when))
