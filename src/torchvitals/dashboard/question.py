"""`Question` and `Body`: what a maker of answers is given, and what it gives. No server needed."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torchvitals.dashboard.asked import Asked
from torchvitals.dashboard.findings import hangs
from torchvitals.dashboard.frames import Arrays, frame, frame_as_json, json_bytes
from torchvitals.store import History

WORTH_ZIPPING: Final = 4096
"""JSON from this size on is compressed, floats never: they hardly shrink."""

JSON: Final = "application/json"
FRAME: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Body:
    """What is sent."""

    data: bytes
    media: str = JSON
    zipped: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes kept for it."""
        return len(self.data) + len(self.zipped or b"")


@dataclass(frozen=True, slots=True)
class Question:
    """What a maker of answers is given. All of it is read at one version of the run."""

    run: str
    version: str
    history: History
    asked: Asked

    def json(self, value: dict[str, Any]) -> Body:
        """A JSON answer that names its run and version."""
        return json_body({"run": self.run, "version": self.version, **value})

    def frame(self, header: dict[str, Any], arrays: Arrays) -> Body:
        """A frame, or with ``format=json`` the same as JSON."""
        head = {"run": self.run, "version": self.version, **header}
        if self.asked.as_json:
            return zipped(Body(frame_as_json(head, arrays)))
        return Body(frame(head, arrays), FRAME)


Maker = Callable[[Question], Body]


def json_body(value: dict[str, Any]) -> Body:
    """JSON, compressed if that pays."""
    return zipped(Body(json_bytes(value)))


def zipped(body: Body) -> Body:
    """The same body, and its compressed twin if it is long enough."""
    if len(body.data) < WORTH_ZIPPING:
        return body
    return Body(body.data, body.media, gzip.compress(body.data, compresslevel=4, mtime=0))


def version_of(history: History) -> str:
    """Changes when there is more to see: something was stored, or the run's status changed.

    That a run hangs is to be seen too, though nothing is stored any more.
    """
    stamp, status = history.stamp(), history.status
    hung = status == "running" and hangs(history, stamp)
    return f"{stamp}-{'stalled' if hung else status}"
