"""A diagnosis as text that fits one screen: the worst finding in full, the others shorter."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from torchvitals.diagnosis import Diagnosis, diagnose
from torchvitals.record import Finding, Severity
from torchvitals.store import open_run
from torchvitals.views import words
from torchvitals.views.terminal import Screen

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
MARKS = {Severity.ERROR: "✗ error", Severity.WARNING: "! warning", Severity.INFO: "· info"}
NUM_FULL = 2
"""Findings shown with evidence, causes and fix; the rest with explanation and fix."""
NUM_SHORT = 4
INDENT = "  "


def print_diagnosis(run: str | os.PathLike[str]) -> Diagnosis:
    """Print what `vitals diagnose RUN` prints; returns the same as data."""
    with open_run(run) as history:
        found = diagnose(history)
    screen = Screen()
    screen.show(diagnosis_text(found, screen.width, path=Path(run)))
    return found


def diagnosis_text(found: Diagnosis, width: int, *, path: Path | None = None) -> RenderableType:
    """What is wrong, where, since when, why, and what to do."""
    name = str(path) if path is not None else found.run
    rest = f"  {found.status} · {words.plural(found.steps, 'step')} · {counts(found.findings)}"
    title = Text.assemble((words.tail(name, max(width - len(rest), 16)), "bold"), rest)
    lines: list[RenderableType] = [title]
    for at, one in enumerate(found.findings[: NUM_FULL + NUM_SHORT]):
        lines += ["", *finding_lines(one, width, full=at < NUM_FULL)]
    more = len(found.findings) - NUM_FULL - NUM_SHORT
    if more > 0:
        lines += [
            "",
            Text(f"and {words.plural(more, 'more finding')} (--json has them all)", "dim"),
        ]
    lines += ["", *not_checked_lines(found, width)]
    if found.findings:
        lines.append(Text(f"More: vitals explain {found.findings[0].name}", "dim"))
    return Group(*lines)


def counts(findings: Sequence[Finding]) -> str:
    """``1 error, 2 warnings`` or that nothing was found."""
    parts = []
    for severity in reversed(Severity):
        num = sum(one.severity is severity for one in findings)
        if num and severity is Severity.INFO:
            parts.append(words.plural(num, "note"))
        elif num:
            parts.append(words.plural(num, severity.value))
    return ", ".join(parts) or "nothing wrong was found"


def finding_lines(one: Finding, width: int, *, full: bool) -> Iterator[RenderableType]:
    """One finding."""
    when = (
        f"since step {one.first_step}" if one.is_open else f"steps {one.first_step}…{one.last_step}"
    )
    yield Text.assemble(
        (f"{MARKS[one.severity]}  {one.name}", STYLES[one.severity]),
        f"  {where(one)} · {when} · {words.percent(one.confidence)} sure",
        no_wrap=True,
        overflow="ellipsis",
    )
    yield from _wrapped(one.explanation, width)
    if full:
        for each in one.evidence[:3]:
            yield from _wrapped(each.text, width, first="  • ", style="dim")
        for number, cause in enumerate(one.causes[:3], start=1):
            yield from _wrapped(f"{cause.text}. Test: {cause.test}", width, first=f"  {number}. ")
    if one.fix:
        yield from _wrapped(one.fix, width, first="  → ", style="bold")
    if one.symptoms:
        names = ", ".join(dict.fromkeys(each.name for each in one.symptoms))
        yield from _wrapped(f"explains: {names}", width, style="dim")


def where(one: Finding) -> str:
    """The origin, and how many more."""
    sites = [site for site in one.sites if site != "[root module]"]
    if not sites:
        return "the whole model"
    more = f" and {len(sites) - 1} more" if len(sites) > 1 else ""
    return f"{words.tail(sites[0], 40)}{more}"


def not_checked_lines(found: Diagnosis, width: int) -> Iterator[RenderableType]:
    """What could not be judged: never silence that looks like health."""
    if not found.not_checked:
        yield Text("Every rule was checked.", "dim")
        return
    names = ", ".join(one.name for one in found.not_checked)
    num = len(found.not_checked)
    text = f"Not checked ({num}): {names}. --json says why, and how to enable it."
    lines = textwrap.wrap(text, max(width, 40))
    for line in lines[:3]:
        yield Text(line, "dim")
    if len(lines) > 3:
        yield Text("…", "dim")


def _wrapped(
    text: str, width: int, *, first: str = INDENT, style: str = ""
) -> Iterator[RenderableType]:
    body = textwrap.wrap(
        text,
        max(width - 1, 40),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
    )
    yield from (Text(line, style) for line in body)
