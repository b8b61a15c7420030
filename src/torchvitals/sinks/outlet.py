"""`Outlet`: one sink, its thread and its queue.

The queue is bounded: when the sink can't keep up, rows are dropped and counted, and nobody waits.
A sink that raises is told once and tried again, after a pause when it goes on failing; one whose
package is missing, or that can't begin, is off for the run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, Full, Queue
from typing import Any

from torchvitals.record import Event, HistogramRow, MissingExtra, Row, RunInfo
from torchvitals.sinks.choice import Choice
from torchvitals.sinks.joining import Joining
from torchvitals.sinks.sink import Sink

log = logging.getLogger("torchvitals")

WAITING = 1024
"""Rows that may wait for a sink."""
PAUSE_S = 30.0
"""How long a sink is left alone after `PATIENCE` failures running."""
PATIENCE = 3

Tell = Callable[[str, str], None]
"""Called with a sink's name and what is wrong with it, in words without details."""
TICK = None
"""In the queue: a second has passed."""


class Outlet:
    """Feeds one sink from the background."""

    def __init__(self, sink: Sink, choice: Choice, info: RunInfo, folder: Path, tell: Tell) -> None:
        self.name: str = getattr(sink, "name", type(sink).__name__)
        self.patience_s: float = getattr(sink, "patience_s", Sink.patience_s)
        self.num_dropped = 0
        """Rows that did not get there."""
        self._sink = sink
        self._choice = choice
        self._info = info
        self._folder = folder
        self._tell = tell
        self._queue: Queue[Row | Event | HistogramRow | None] = Queue(WAITING)
        self._status: str | None = None
        self._off = False
        self._joining = Joining()
        self._told = False
        self._num_failed = 0
        """Failures running."""
        self._again_at = 0.0
        self._written = False
        self._thread = threading.Thread(
            target=self._run, name=f"torchvitals {self.name}", daemon=True
        )

    def start(self) -> None:
        """Begin, on its own thread."""
        self._thread.start()

    def row(self, row: Row) -> None:
        """Forward what is chosen of a row."""
        chosen = None if self._off else self._choice.pick(row)
        if chosen is not None:
            self._put(chosen)

    def histograms(self, row: HistogramRow) -> None:
        """Forward distributions."""
        chosen = None if self._off else self._choice.pick_histograms(row)
        if chosen is not None:
            self._put(chosen)

    def event(self, event: Event) -> None:
        """Forward an event."""
        if not self._off:
            self._put(event)

    def tick(self) -> None:
        """A second has passed."""
        if not self._off and not self._queue.full():
            self._put(TICK)

    def end(self, status: str) -> None:
        """Ask it to write what is left and to close."""
        self._status = status

    def wait(self, timeout_s: float) -> None:
        """Until it has closed; then say what was lost, if anything was."""
        self._thread.join(max(timeout_s, 0.0))
        stuck = self._thread.is_alive()
        lost = self.num_dropped + (self._queue.qsize() if stuck else 0)
        if stuck:
            log.warning(
                "torchvitals: %s did not take what was left within %.0f s and is left behind; %s "
                "The run itself is complete in its own file.",
                self.name,
                self.patience_s,
                _rows(lost, "did not get there."),
            )
        elif lost and not self._off:
            log.warning(
                "torchvitals: %s The run itself is complete in its own file.",
                _rows(lost, f"did not get to {self.name}: it was too slow, or failed."),
            )
        left_out = self._choice.left_out
        if left_out and not self._off:
            log.warning(
                "torchvitals: %s did not get %s of the numbers you logged (%s …), to stay below 60 "
                "series; series='.*' forwards everything.",
                self.name,
                len(left_out),
                ", ".join(left_out[:3]),
            )

    def _put(self, item: Row | Event | HistogramRow | None) -> None:
        try:
            self._queue.put_nowait(item)
        except Full:
            self.num_dropped += isinstance(item, Row)

    def _run(self) -> None:
        if not self._open():
            return
        while self._status is None or not self._queue.empty():
            try:
                item = self._queue.get(timeout=0.1)
            except Empty:
                continue
            self._take(item)
        for row in self._joining.rest():
            self._do("write", row)
        status = self._status
        self._do("close", status, always=True)

    def _open(self) -> bool:
        try:
            _call(self._sink, "open", self._info, self._folder)
        except MissingExtra as error:
            self._failed(error, f"{error}")
        except Exception as error:
            self._failed(error, f"it could not begin ({_reason(error)})")
        else:
            return True
        self._off = True
        return False

    def _take(self, item: Row | Event | HistogramRow | None) -> None:
        if isinstance(item, Row):
            self._joining.add(item)
        elif isinstance(item, HistogramRow):
            self._do("histograms", item)
        elif isinstance(item, Event):
            self._do("event", item)
        else:
            for row in self._joining.tick():
                self._do("write", row)
            if self._written:
                self._written = False
                self._do("flush")

    def _do(self, method: str, *arguments: Any, always: bool = False) -> None:
        if not always and time.monotonic() < self._again_at:
            self.num_dropped += method == "write"
            return
        try:
            _call(self._sink, method, *arguments)
        except Exception as error:  # a tracker may raise anything
            self.num_dropped += method == "write"
            self._num_failed += 1
            if self._num_failed >= PATIENCE:
                self._again_at = time.monotonic() + PAUSE_S
            self._failed(
                error,
                f"it failed to {method} ({_reason(error)}); it is tried again",
            )
        else:
            self._written = self._written or method in {"write", "histograms", "event"}
            self._num_failed = 0

    def _failed(self, error: Exception, why: str) -> None:
        if self._told:
            return
        self._told = True
        log.warning(
            "torchvitals: rows can't be forwarded to %s: %s. Training goes on, and the run itself "
            "is stored as always.",
            self.name,
            why.rstrip("."),
        )
        self._tell(self.name, f"rows can't be forwarded to {self.name}: {type(error).__name__}")


def _call(sink: Any, method: str, *arguments: Any) -> None:
    """A sink of somebody else's need not have all methods."""
    call = getattr(sink, method, None)
    if call is not None:
        call(*arguments)


def _reason(error: Exception) -> str:
    """The error in a line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first[:300]}"


def _rows(num: int, what: str) -> str:
    return f"{num} {'row' if num == 1 else 'rows'} {what}"
