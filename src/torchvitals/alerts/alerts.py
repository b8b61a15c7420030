"""`Alerts`: hears what goes on in a run and tells those the user named."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

from torchvitals.alerts.bundle import GATHER_S
from torchvitals.alerts.message import Message, of_finding
from torchvitals.alerts.post import Post
from torchvitals.alerts.urls import VARIABLE, find_urls
from torchvitals.record import ConfigError, Event, Finding, Row, Severity

log = logging.getLogger("torchvitals")

CLOSE_S = 10.0
LEVELS = ", ".join(level.value for level in Severity)


class Alerts:
    """Findings from `level` upwards, when they open, get worse, and are over.

    Args:
        urls: apprise addresses (``slack://…``, ``mailto://…``, ``json://…``); by default those of
            ``VITALS_ALERT_URLS`` or of the settings' files.
        level: "info", "warning" or "error": the least that is told.
        every_s: seconds between two notifications; what comes in between goes into one.
        guard: tell of the guard's decisions too.
        end: tell of the run's end: "failed" (only then), "always", or False.
    """

    name = "alerts"
    closes_last = True

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        level: str = "warning",
        every_s: float = 300.0,
        guard: bool = False,
        end: Literal["failed", "always", False] = "failed",
        gather_s: float = GATHER_S,
    ) -> None:
        self.level = severity(level)
        if every_s < 0 or gather_s < 0:
            raise ConfigError("every_s and gather_s are seconds and can't be negative")
        if end not in {"failed", "always", False}:
            raise ConfigError(f"end must be 'failed', 'always' or False, got {end!r}")
        self._urls = find_urls(urls)
        self._every_s = every_s
        self._gather_s = gather_s
        self._guard = guard
        self._end = end
        self._error = ""
        self._post: Post | None = None

    def __repr__(self) -> str:
        # Addresses hold passwords.
        return f"<torchvitals.Alerts from {self.level.value}, {len(self._urls)} addresses>"

    def __reduce__(self) -> Any:
        raise TypeError("Alerts hold addresses with passwords and are not pickled")

    @property
    def secrets(self) -> tuple[str, ...]:
        """The addresses, for whoever must keep them out of what is written."""
        return self._urls

    def begin(self, run: str) -> None:
        """The run starts."""
        if not self._urls:
            log.warning(
                "torchvitals: alerts are on, but there is nobody to tell: set %s, or urls under "
                "[tool.torchvitals.alerts] in pyproject.toml (docs/alerts.md).",
                VARIABLE,
            )
            return
        self._post = Post(self._urls, run, self._every_s, self._gather_s)
        self._post.start()

    def rows(self, rows: Sequence[Row]) -> None:
        """Numbers are judged elsewhere."""

    def tick(self) -> None:
        """Time is kept elsewhere."""

    def event(self, event: Event) -> None:
        """Something happened, which may have to be told."""
        if event.kind == "error":
            self._error = event.text
        message = self._message(event)
        if message is not None and self._post is not None:
            self._post.put(message)

    def close(self, status: str) -> None:
        """The run is over; what is left is sent now."""
        if self._post is None:
            return
        failed = status != "finished"
        if self._end == "always" or (self._end == "failed" and failed):
            level = Severity.ERROR if failed else Severity.INFO
            title = f"the run {'failed' if failed else 'finished'}"
            self._post.put(Message(title=title, text=self._error, level=level, hurries=True))
        self._post.close(CLOSE_S)
        self._post = None

    def _message(self, event: Event) -> Message | None:
        data = event.data
        if event.kind == "finding" and "finding" in data:
            finding = Finding.from_json(data["finding"])
            if finding.severity.rank < self.level.rank:
                return None
            about = str(data.get("id", finding.name))
            return of_finding(about, finding, is_resolved=data.get("state") == "resolved")
        if event.kind == "guard" and self._guard:
            title = f"guard at step {event.step}: {event.text}"
            return Message(title=title, level=Severity.WARNING)
        if event.kind == "alert":
            return Message(
                title=str(data.get("title", event.text)),
                text=str(data.get("text", "")),
                level=Severity(data.get("level", Severity.INFO)),
                hurries=True,
            )
        return None


def severity(level: str) -> Severity:
    """The level of that name."""
    try:
        return Severity(level)
    except ValueError:
        raise ConfigError(f"level must be one of {LEVELS}, got {level!r}") from None


def make_alerts(given: str | Alerts | None) -> Alerts | None:
    """What ``watch(alerts=…)`` was given: a level, or an `Alerts`."""
    if given is None or isinstance(given, Alerts):
        return given
    if isinstance(given, str) and "://" not in given:
        return Alerts(level=given)
    raise ConfigError(
        f"alerts must be a level ({LEVELS}) or Alerts(urls=…, level=…), got a "
        f"{type(given).__name__} that is neither"
    )
