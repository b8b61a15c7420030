"""How `vitals watch` tells: text with a line at the bottom of a terminal, or JSON, a line each."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import click
from rich.console import RenderableType
from rich.live import Live

from torchvitals.diagnosis import Watchdog
from torchvitals.record import Event
from torchvitals.store import History
from torchvitals.store.attempts import HEARTBEAT_STALE_S
from torchvitals.views.as_json import line
from torchvitals.views.listing import took
from torchvitals.views.progress import Progress, done_step, progress_of
from torchvitals.views.terminal import Screen
from torchvitals.views.watch_text import (
    attached_text,
    ended_text,
    facts_of,
    going_text,
    opened_text,
    resolved_text,
)


class Told(Protocol):
    """Somebody who hears what goes on."""

    def heard(self, event: Event) -> None:
        """A finding opened, got worse, or is over."""

    def going(self) -> None:
        """Nothing else happened, and the run goes on."""

    def end(self) -> None:
        """Nothing more comes."""


@contextmanager
def told(history: History, dog: Watchdog, *, as_json: bool, stall: str) -> Iterator[Told]:
    """Begin to tell, after having said who is followed."""
    if as_json:
        yield AsJson(history, dog)
        return
    with AsText(history, dog, stall).shown() as out:
        yield out


class AsJson:
    """Objects: ``attached``, ``finding`` and ``ended``, each with its time."""

    def __init__(self, history: History, dog: Watchdog) -> None:
        self._history, self._dog = history, dog
        newest = history.attempts[-1]
        self._say(
            "attached",
            status=history.status,
            pid=newest.pid,
            host=newest.host,
            is_here=newest.host == socket.gethostname(),
            asks=dog.asks,
        )

    def heard(self, event: Event) -> None:
        """One object, the finding in it."""
        self._say("finding", when=event.time, step=event.step, **event.data)

    def going(self) -> None:
        """Silence is news enough."""

    def end(self) -> None:
        """How it ended, and what is open."""
        self._say(
            "ended" if self._dog.status != "running" else "left",
            status=self._dog.status,
            error=error_of(self._history),
            open=[one.name for one in self._dog.findings],
        )

    def _say(self, event: str, *, when: float | None = None, **fields: Any) -> None:
        head = {
            "event": event,
            "time": time.time() if when is None else when,
            "run": self._history.path.parent,
            "step": done_step(self._history),
        }
        click.echo(line({**head, **fields}))


class AsText:
    """Lines for a person."""

    def __init__(self, history: History, dog: Watchdog, stall: str) -> None:
        self._history, self._dog = history, dog
        self._path = history.path.parent
        self._screen = Screen()
        newest = history.attempts[-1]
        facts = facts_of(
            newest,
            is_here=newest.host == socket.gethostname(),
            asks=dog.asks,
            stall=stall,
            stale_s=HEARTBEAT_STALE_S,
        )
        status = history.status
        self._show(
            attached_text(
                self._path,
                status,
                self._progress(),
                list(facts) if status == "running" else [],
                self._screen.width,
            )
        )
        self._live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[AsText]:
        """On a terminal with a line at the bottom, which goes away at the end."""
        if not self._screen.is_terminal:
            yield self
            return
        with Live(console=self._screen, auto_refresh=False, transient=True) as self._live:
            yield self

    def heard(self, event: Event) -> None:
        """A finding."""
        make = resolved_text if event.data["state"] == "resolved" else opened_text
        self._show(make(event, self._screen.width))

    def going(self) -> None:
        """Keep the line up to date."""
        if self._live is not None:
            found, width = self._dog.findings, self._screen.width
            text = going_text(self._progress(), found, width, now=time.time())
            self._live.update(text, refresh=True)

    def end(self) -> None:
        """How it ended."""
        if self._live is not None:
            self._live.update("", refresh=True)
        now = time.time()
        self._show(
            ended_text(
                self._path,
                self._dog.status,
                self._progress(),
                self._dog.findings,
                now=now,
                took_s=took(self._history, now),
                error=error_of(self._history) if self._dog.status == "failed" else "",
                width=self._screen.width,
            )
        )

    def _progress(self) -> Progress:
        return progress_of(self._history, now=time.time())

    def _show(self, text: RenderableType) -> None:
        self._screen.show(text)
        self._screen.file.flush()  # a pipe is read while the run goes on


def error_of(history: History) -> str:
    """What the newest attempt failed with; empty when it did not say."""
    attempts = history.attempts
    events = history.events("error", attempt=attempts[-1].id) if attempts else []
    return events[-1].text if events else ""
