"""`Diagnostician`: the diagnosis beside the training, on the recorder's thread.

It looks after the second monitored step, then at growing intervals, and at once when something is
not finite. Its time stays within `BUDGET` of the run's (plus `CREDIT_S` for the first looks): when
a look takes long, the next comes later, and looks with the cheap rules alone come in between.

A finding opens, is updated, and resolves; each change is an event of the run. It is told once, when
it opens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from torchvitals.diagnosis.diagnose import judge
from torchvitals.diagnosis.grouping import group
from torchvitals.diagnosis.telling import one_line, tell
from torchvitals.record import SCALAR, Event, Finding, Key, Row, Severity, is_missing
from torchvitals.rules.catalogue import rules
from torchvitals.rules.plugged import plugged
from torchvitals.rules.run import Run
from torchvitals.rules.stored import Stored
from torchvitals.rules.thresholds import Thresholds

log = logging.getLogger("torchvitals")

BUDGET = 0.01
CREDIT_S = 0.3
"""Seconds the first looks may take beyond the budget."""
FIRST = 2
"""Monitored steps before the first look."""
UPDATE_S = 60.0
"""An open finding is stored again at most so often, unless it got worse."""
GONE = 2
"""Looks that must miss a finding before it is over."""
NON_FINITE = frozenset({"num_nan", "num_posinf", "num_inf"})


class Readable(Stored, AbstractContextManager["Readable"], Protocol):
    """A run that can be read and closed."""

    def close(self) -> None:
        """Let go of the file."""

    def findings(self) -> list[Finding]:
        """What was found before."""


@dataclass(slots=True)
class Open:
    """A finding under way."""

    id: str
    finding: Finding
    stored: Finding
    """As the run's file has it."""
    stored_at: float
    missed: int = 0


class Diagnostician:
    """A listener of the recorder."""

    name = "diagnosis"

    def __init__(
        self,
        open_history: Callable[[], Readable],
        put: Callable[[Event], None],
        *,
        thresholds: Thresholds,
        on_finding: Callable[[Finding], None] | None = None,
        stop_on: Severity | None = None,
        say: Callable[[Finding], None] = tell,
        clock: Callable[[], float] = time.perf_counter,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        """`clock` tells how long the run takes, `busy` how long this thread works in it.

        `say` tells a person of a finding that opens.
        """
        # Imported here, before the first step, and not on the recorder's thread.
        self._rules = (*rules(), *plugged())
        self._open_history = open_history
        self._put = put
        self._thresholds = thresholds
        self._on_finding = on_finding
        self._stop_on = stop_on
        self._say = say
        self._clock = clock
        self._busy = busy
        self._begun = clock()
        self._history: Readable | None = None
        self._known: dict[str, Open] = {}
        self._last: dict[str, Finding] = {}
        """The last verdict of each rule, for looks with the cheap ones alone."""
        self._headers: dict[int, _Header] = {}
        self._num_monitored = 0
        self._looked_at = 0
        self._next = FIRST
        self.urgent = False
        """Something is not finite: look as soon as possible."""
        self._costs = {True: 0.0, False: 0.0}
        """Processor seconds of the last look, with the cheap rules alone and with all."""
        self._closed = False
        self.spent_s = 0.0
        """Processor seconds spent looking so far."""
        self.stop: Finding | None = None
        """The finding that shall end the training."""

    @property
    def findings(self) -> list[Finding]:
        """Those that are open, the worst first."""
        return _ranked(one.finding for one in list(self._known.values()))

    def rows(self, rows: Sequence[Row]) -> None:
        """Count measured steps, and notice what is not finite."""
        for row in rows:
            header = self._headers.get(id(row.header))
            if header is None or header.keys is not row.header:
                if len(self._headers) > 64:
                    self._headers.clear()
                header = self._headers[id(row.header)] = _Header.of(row.header)
            self._num_monitored += header.monitored
            if "non_finite" not in self._known and header.bad(row.values):
                self.urgent = True

    def stored(self, num_steps: int) -> None:
        """So many steps are in the file: for those who read a run and hear no rows."""
        self._num_monitored = num_steps

    def event(self, event: Event) -> None:
        """Nothing to do: events are read with the rest."""

    def tick(self) -> None:
        """Look, if it is time."""
        urgent, self.urgent = self.urgent, False
        if self._closed or (self._num_monitored < FIRST and not urgent):
            return
        fresh = self._num_monitored > self._looked_at
        if urgent:
            self._look(cheap=self._costs[False] > CREDIT_S)
        elif fresh and self._num_monitored >= self._next:
            allowed = BUDGET * (self._clock() - self._begun) + CREDIT_S - self.spent_s
            if allowed >= self._costs[False]:
                self._look(cheap=False)
            elif allowed >= 3 * self._costs[True]:
                self._look(cheap=True)

    def close(self, status: str) -> None:
        """One last look at everything."""
        if self._num_monitored >= FIRST:
            self._look(cheap=False, last=True)
        self._closed = True
        if self._history is not None:
            self._history.close()
            self._history = None

    def _look(self, *, cheap: bool, last: bool = False) -> None:
        begun = self._busy()
        if self._history is None:
            self._history = self._open_history()
            for one in self._history.findings():
                if one.is_open:
                    self._known[one.name] = Open(_id(one), one, one, self._clock(), missed=-1)
        run = Run(self._history)
        chosen = [rule for rule in self._rules if rule.cheap or not cheap]
        found, _ = judge(run, self._thresholds, chosen)
        for rule in chosen:
            self._last.pop(rule.name, None)
        self._last.update({one.name: one for one in found})
        self._compare(run, group(run, self._last.values()), cheap=cheap, last=last)
        cost = self._busy() - begun
        self._costs[cheap] = cost
        self.spent_s += cost
        self._looked_at = self._num_monitored
        self._next = max(self._num_monitored + 1, min(2 * self._num_monitored, 64))

    def _compare(self, run: Run, found: list[Finding], *, cheap: bool, last: bool) -> None:
        """What opened, changed and is over since the last look."""
        now, step = self._clock(), run.last_step
        parts = {part.name: one.name for one in found for part in one.symptoms}
        for seen in _ranked(found):
            known = self._known.get(seen.name)
            if known is None:
                self._known[seen.name] = Open(_id(seen), seen, seen, now)
                self._store(_id(seen), seen, "opened", step)
                self._announce(seen)
                continue
            # It began when it was first seen; later looks may see further back.
            one = replace(seen, first_step=min(seen.first_step, known.finding.first_step))
            worse = one.severity.rank > known.finding.severity.rank
            differs = _gist(one) != _gist(known.stored)
            known.finding, known.missed = one, 0
            if worse or (differs and (last or now - known.stored_at >= UPDATE_S)):
                known.stored, known.stored_at = one, now
                self._store(known.id, one, "updated", step)
            if worse:
                self._announce(one)
        there = {one.name for one in found}
        for name in [name for name in self._known if name not in there]:
            known = self._known[name]
            known.missed += 1
            if name in parts or (not cheap and known.missed >= GONE):
                over = replace(known.finding, resolved_step=step)
                why = f"part of {parts[name]}" if name in parts else "over"
                self._store(known.id, over, "resolved", step, text=f"{name}: {why}")
                del self._known[name]

    def _store(self, id_: str, one: Finding, state: str, step: int, text: str = "") -> None:
        data = {"id": id_, "name": one.name, "state": state, "finding": one.to_json()}
        self._put(Event(step, time.time(), "finding", text or one_line(one), data))

    def _announce(self, one: Finding) -> None:
        self._say(one)
        if self._stop_on is not None and one.severity.rank >= self._stop_on.rank:
            self.stop = self.stop or one
        if self._on_finding is not None:
            try:
                self._on_finding(one)
            except Exception:
                log.exception("torchvitals: on_finding failed and is not called any more")
                self._on_finding = None


@dataclass(frozen=True, slots=True)
class _Header:
    """Which columns of a row tell that something is not finite."""

    keys: tuple[Key, ...]
    monitored: bool
    counts: NDArray[np.intp]
    losses: NDArray[np.intp]

    @classmethod
    def of(cls, keys: tuple[Key, ...]) -> _Header:
        counts = [at for at, key in enumerate(keys) if key.stat in NON_FINITE]
        losses = [at for at, key in enumerate(keys) if key.kind == SCALAR and "loss" in key.site]
        return cls(
            keys,
            any(key.kind == "summary" for key in keys),
            np.array(counts, dtype=np.intp),
            np.array(losses, dtype=np.intp),
        )

    def bad(self, values: NDArray[np.float32]) -> bool:
        if len(self.counts) and (values[self.counts] > 0).any():
            return True
        losses = values[self.losses]
        return bool((~np.isfinite(losses) & ~is_missing(losses)).any())


def _gist(one: Finding) -> tuple[Severity, tuple[str, ...], str]:
    """What of a finding must have changed for it to be stored again."""
    return one.severity, tuple(one.sites[:1]), one.fix


def _id(one: Finding) -> str:
    return f"{one.name}@{one.first_step}"


def _ranked(found: Iterable[Finding]) -> list[Finding]:
    return sorted(found, key=lambda one: (-one.severity.rank, -one.confidence))
