"""`Message`: one thing somebody is told, and how several of them read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchvitals.record import ROOT, Finding, Severity

MOST = 20
"""Messages that are spelled out; of more, the number."""
SITES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What to say."""

    title: str
    text: str = ""
    level: Severity = Severity.INFO
    about: str = ""
    """What it is about: messages about the same thing replace each other, resolved ones end it."""
    is_resolved: bool = False
    hurries: bool = False
    """It waits for nobody: asked for by the user, or the last one."""


def of_finding(name: str, finding: Finding, *, is_resolved: bool) -> Message:
    """A finding in words: what, where, since when, why, what to do."""
    sites = [site for site in finding.sites if site != ROOT]
    where = f" in {', '.join(sites[:SITES])}" if sites else ""
    where += f" and {len(sites) - SITES} more" if len(sites) > SITES else ""
    if is_resolved:
        step = finding.resolved_step if finding.resolved_step is not None else finding.last_step
        return Message(
            title=f"{finding.name}{where}: over since step {step}",
            level=finding.severity,
            about=name,
            is_resolved=True,
        )
    lines = [finding.explanation, *(f"· {each.text}" for each in finding.evidence[:3])]
    if finding.fix:
        lines.append(f"Do: {finding.fix}")
    return Message(
        title=f"{finding.name}{where} since step {finding.first_step}",
        text="\n".join(line for line in lines if line),
        level=finding.severity,
        about=name,
    )


def together(run: str, messages: Sequence[Message]) -> tuple[str, str]:
    """Title and text of one notification that holds them all."""
    first, *others = messages
    more = f" (and {len(others)} more)" if others else ""
    title = f"{run}: {_word(first)}{first.title}{more}"
    if not others:
        return title, first.text or first.title
    parts = [
        f"{_word(message)}{message.title}" + (f"\n{message.text}" if message.text else "")
        for message in messages[:MOST]
    ]
    if len(messages) > MOST:
        parts.append(f"… and {len(messages) - MOST} more: vitals show {run}")
    return title, "\n\n".join(parts)


def _word(message: Message) -> str:
    return "resolved: " if message.is_resolved else f"{message.level.value}: "
