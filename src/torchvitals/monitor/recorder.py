"""`Recorder`: the thread that turns what was measured into rows and writes them down.

The training thread only leaves packets in the inbox; what of them is on a device crosses over in
the ring meanwhile. Here they become columns, one row a step, and go to the store, which is
committed every 0.8 s: a kill loses less than a second. In between this thread sleeps, unless there
is much to do. A store that fails
(disk full, folder gone) is told once and tried again later; what can't be stored is dropped, the
training never waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import methodcaller
from typing import Any, Protocol

import numpy as np

from torchvitals.monitor.inbox import Inbox
from torchvitals.monitor.ring import Crossing, this_ring
from torchvitals.monitor.scalars import ScalarBook
from torchvitals.monitor.summary import HEADER as SUMMARY
from torchvitals.monitor.summary import summarize
from torchvitals.monitor.wall import Wall, strict
from torchvitals.probes.probe import MAX_HEADERS, Distributions, Notes, Probe
from torchvitals.record import Event, HistogramRow, Key, Row, StoreError
from torchvitals.store.writer import RunWriter

log = logging.getLogger("torchvitals")

COMMIT_S = 0.8
RETRY_S = 10.0
TOGETHER = 64
"""Packets turned into rows at once: a fast training costs few numpy calls a step."""
EAGER = 4
"""The first packets are committed one by one: what is wired wrongly shows in them."""
BACKLOG = 256
"""Packets that may wait before measuring pauses: the disk is slower than the training."""


@dataclass(slots=True)
class Packet:
    """What the probes measured in one step."""

    step: int
    time: float
    parts: list[tuple[str, Probe, Any]]
    """(name, probe, what it measured), in the order in which they build on each other."""
    overhead_s: float


@dataclass(slots=True)
class Histograms:
    """Distributions added up over the monitored steps since the last ones."""

    step: int
    """The last of these steps."""
    time: float
    parts: Distributions


@dataclass(slots=True)
class Logged:
    """Numbers that come by themselves: logged by the user, of an evaluation, of the machine."""

    step: int
    time: float
    numbers: Mapping[Key, Any] | Callable[[], Mapping[Key, Any]]
    """Or a function that gives them, called on the recorder's thread."""


class Columns:
    """Headers of flat dicts of metrics: the same names give the same header object."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[Key, ...]] = {}

    def row(self, step: int, values: Mapping[str, float]) -> Row:
        """The dict as a row."""
        names = tuple(values)
        header = self._known.get(names)
        if header is None:
            if len(self._known) > MAX_HEADERS:
                self._known.clear()
            header = self._known[names] = tuple(map(Key.parse, names))
        with np.errstate(over="ignore"):
            line = np.fromiter(values.values(), np.float64, len(names)).astype(np.float32)
        return Row(step, time.time(), header, line)


@dataclass(slots=True)
class EpochEnd:
    """An epoch is over."""

    step: int
    time: float
    number: int


Measurements = Packet | Histograms | Logged
"""What may hold tensors."""
Item = Packet | Histograms | Logged | Row | EpochEnd | Event
LAZY = frozenset({Packet, Histograms, Logged, Row})
"""What may wait for the next commit, once the first steps are through."""


class Listener(Protocol):
    """Somebody who hears, on the recorder's thread, what goes into the store.

    What a listener raises switches it off; it must not take long, or measuring pauses. One that has
    `histograms(row)` hears those too; one with a true `closes_last` closes after all others, and
    hears what they say while they close.
    """

    name: str
    """What the user is told about when it fails."""
    # One with an attribute `urgent` that is true gets a commit, and its tick, as soon as possible.

    def rows(self, rows: Sequence[Row]) -> None:
        """Rows of finished steps, in the order in which they are stored."""

    def event(self, event: Event) -> None:
        """Something happened."""

    def tick(self) -> None:
        """After each commit (about once a second): everything heard so far can be read."""

    def close(self, status: str) -> None:
        """The run ends; the store is still open."""


class Recorder:
    """Owns the writer's thread and the store."""

    def __init__(self, writer: RunWriter | None, wall: Wall, num_parameters: int) -> None:
        self._listeners: list[Listener] = []
        self._writer = writer
        self._wall = wall
        self._num_parameters = num_parameters
        self._inbox: Inbox[Item | Crossing[Any] | Callable[[], None]] = Inbox()
        self._ring = this_ring()
        self._waiting: list[Packet] = []
        self._book = ScalarBook()
        self._headers: dict[tuple[int, ...], tuple[tuple[Any, ...], tuple[Any, ...]]] = {}
        self._broken_until = 0.0
        self._told = False
        self._committed = time.monotonic()
        self._closing = threading.Event()
        self._eager = EAGER
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="torchvitals", daemon=True)
        self._thread.start()

    def listen(self, listener: Listener) -> None:
        """Let somebody hear everything from now on."""
        self._listeners.append(listener)

    @property
    def behind(self) -> bool:
        """True when so much waits that measuring more would only grow the queue."""
        return len(self._inbox) + len(self._waiting) > BACKLOG

    def put(self, item: Item) -> None:
        """Hand something over. Never blocks."""
        waits = type(item) in LAZY and not (self._eager and self._listeners)
        if self._ring is None:
            self._inbox.put(item, waits=waits)
            return
        sent: Item | Crossing[Any] = item
        if isinstance(item, Measurements) and self._wall.up("ring"):
            with self._wall.around("ring"):
                sent = self._ring.send(item)
        self._inbox.put(sent, waits=waits)

    def flush(self, timeout_s: float = 30.0) -> bool:
        """Wait until everything handed over so far is committed."""
        if not self._thread.is_alive():
            return True
        done = threading.Event()

        def commit_and_tell() -> None:
            self._commit(everything=True)
            done.set()

        self._after_recording(commit_and_tell)
        finished = done.wait(timeout_s)
        self._resurface()
        return finished

    def close(self, status: str, timeout_s: float = 60.0) -> None:
        """Write what is left and close the store."""
        self._after_recording(self._finish(status))
        self._thread.join(timeout_s)
        self._resurface()

    def _after_recording(self, action: Callable[[], None]) -> None:
        """Turn what waits into rows, then act: events that recording gives rise to come before."""

        def record() -> None:
            self._record()
            self._inbox.put(action)

        self._inbox.put(record)

    def _resurface(self) -> None:
        """In strict mode an error of the thread is raised where somebody sees it."""
        error, self._error = self._error, None
        if error is not None and strict():
            raise error

    def _finish(self, status: str) -> Callable[[], None]:
        def finish() -> None:
            self._closing.set()
            self._commit(everything=True)
            for listener in sorted(self._listeners, key=lambda x: getattr(x, "closes_last", False)):
                self._tell(lambda listener: listener.close(status), [listener])
                self._drain()
            writer = self._writer
            if writer is not None:
                self._storing(lambda: writer.close(status))

        return finish

    def _run(self) -> None:
        while not self._closing.is_set():
            self._inbox.wait(max(0.0, self._committed + COMMIT_S - time.monotonic()))
            for item in self._inbox.take():
                self._guarded(item)
                if self._closing.is_set():
                    return
            if time.monotonic() - self._committed >= COMMIT_S:
                self._guarded(self._commit)

    def _guarded(self, item: Item | Crossing[Any] | Callable[[], None]) -> None:
        try:
            self._take(item.land() if isinstance(item, Crossing) else item)
        except Exception as error:  # the thread must live on
            self._error = error
            if not strict():
                self._wall.failed("the recorder", error)

    def _take(self, item: Item | Callable[[], None]) -> None:
        if isinstance(item, Packet):
            self._waiting.append(item)
            if self._eager and self._listeners:
                self._eager -= 1
                self._commit()
            elif len(self._waiting) >= TOGETHER:
                self._record()
        elif isinstance(item, Logged):
            numbers = item.numbers() if callable(item.numbers) else item.numbers
            self._book.add(item.step, item.time, numbers)
        elif isinstance(item, Row):
            self._append([item])
        elif isinstance(item, EpochEnd):
            self._book.end_epoch(item.step, item.time, item.number)
        elif isinstance(item, Histograms):
            self._record_histograms(item)
        elif isinstance(item, Event):
            event = item
            self._store(lambda writer: writer.event(event))
            self._tell(lambda listener: listener.event(event))
        else:
            item()

    def _drain(self) -> None:
        """Store what listeners said while they closed."""
        for item in self._inbox.take():
            if isinstance(item, Event | Row):
                self._take(item)

    def _record(self) -> None:
        """Turn what waits into rows, as many steps of equal shape at once as there are."""
        self._append(self._book.rows(before=self._book.newest))
        waiting, self._waiting = self._waiting, []
        for _, group in groupby(waiting, key=self._shape):
            self._record_alike(list(group))

    def _shape(self, packet: Packet) -> tuple[Any, ...]:
        return tuple(
            (name, probe.shape(raw)) for name, probe, raw in packet.parts if self._wall.up(name)
        )

    def _record_alike(self, packets: list[Packet]) -> None:
        notes = Notes.of(len(packets), self._num_parameters)
        values, probes = [], []
        for place, (name, probe, _) in enumerate(packets[0].parts):
            if not self._wall.up(name):
                continue
            with self._wall.around(name):
                raws = [packet.parts[place][2] for packet in packets]
                values.append(probe.values(raws, notes))
                probes.append(probe)
        overhead = np.array([packet.overhead_s for packet in packets])
        values.append(summarize(notes, overhead))
        header = self._joined((*(probe.header for probe in probes), SUMMARY))
        table = np.concatenate(values, axis=1)
        self._append(
            [Row(p.step, p.time, header, line) for p, line in zip(packets, table, strict=True)]
        )

    def _record_histograms(self, found: Histograms) -> None:
        sites = self._joined(tuple(sites for sites, _ in found.parts))
        counts = np.concatenate([bins.host() for _, bins in found.parts])
        place = {site: line for line, site in enumerate(dict.fromkeys(sites))}
        if len(place) < len(sites):
            # A module called twice in a step may stand in two lists.
            together = np.zeros((len(place), counts.shape[1]), dtype=counts.dtype)
            np.add.at(together, [place[site] for site in sites], counts)
            sites, counts = tuple(place), together
        row = HistogramRow(found.step, found.time, sites, counts)
        self._store(lambda writer: writer.append_histograms(row))
        hearing = [x for x in self._listeners if hasattr(x, "histograms")]
        if hearing:
            self._record()  # the rows of these steps first
            self._tell(methodcaller("histograms", row), hearing)

    def _joined(self, parts: tuple[tuple[Any, ...], ...]) -> tuple[Any, ...]:
        """The parts as one tuple, the same object as long as the parts are the same objects."""
        key = tuple(map(id, parts))
        known = self._headers.get(key)
        if known is None:
            if len(self._headers) > MAX_HEADERS:
                self._headers.clear()
            joined = tuple(entry for part in parts for entry in part)
            # The parts are kept too: their ids stay theirs.
            known = self._headers[key] = (parts, joined)
        return known[1]

    def _append(self, rows: list[Row]) -> None:
        if rows:
            self._store(lambda writer: writer.append(*rows))
            self._tell(lambda listener: listener.rows(rows))
            if any(getattr(listener, "urgent", False) for listener in self._listeners):
                self._inbox.put(self._commit)

    def _tell(
        self, what: Callable[[Listener], None], listeners: Sequence[Listener] | None = None
    ) -> None:
        for listener in self._listeners if listeners is None else listeners:
            if self._wall.up(listener.name):
                with self._wall.around(listener.name):
                    what(listener)

    def _commit(self, *, everything: bool = False) -> None:
        self._record()
        if everything:
            self._append(self._book.rows())
        self._committed = time.monotonic()
        self._store(lambda writer: writer.commit())
        self._tell(lambda listener: listener.tick())

    def _store(self, action: Callable[[RunWriter], None]) -> None:
        writer = self._writer
        if writer is not None and time.monotonic() >= self._broken_until:
            self._storing(lambda: action(writer))

    def _storing(self, action: Callable[[], None]) -> None:
        try:
            action()
        except StoreError as error:
            self._broken_until = time.monotonic() + RETRY_S
            if not self._told:
                self._told = True
                log.warning(
                    "torchvitals: the run can't be stored any more (%s). Training goes on, what "
                    "was stored stays readable; storing is tried again every %.0f s.",
                    error,
                    RETRY_S,
                )
