"""`Watchdog`: follows a stored run from another process, and says what opened and what is over.

It only reads: the one process that may write a run's file is the one that trains it. Findings are
those of the run's own diagnosis, as soon as they are stored; where that is switched off (or the
caller wants other limits) the rules are asked here, by a `Diagnostician` within its budget. Whether
the run goes on at all is asked at every look (`pulse`): a run that hangs or was killed can't say
so itself. Nothing of that is stored, and nothing need be: whoever reads the run later comes to the
same verdict by the same rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from torchvitals.diagnosis.live import Diagnostician, Readable
from torchvitals.diagnosis.pulse import pulse
from torchvitals.diagnosis.telling import one_line
from torchvitals.record import Event, Finding, Severity
from torchvitals.rules.say import num
from torchvitals.rules.stored import Stored
from torchvitals.rules.thresholds import Thresholds

STALLED = "stalled"


class Watchdog:
    """Asked again and again, it gives events of findings as the run's file has them.

    Args:
        history: the run; it stays the caller's.
        open_again: opens it once more, for the rules, where they are asked here.
        thresholds: the limits, of `stalled` and of the rules that are asked here.
        asks: ask the rules here; by default where the run does not diagnose itself.
    """

    def __init__(
        self,
        history: Stored,
        open_again: Callable[[], Readable],
        *,
        thresholds: Thresholds,
        asks: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._history = history
        self._limits = thresholds
        self._clock = clock
        # Runs of before it was noted there, and those that are written by hand, say nothing.
        diagnoses = self._history.info.watch.get("diagnose") is True
        self.asks = not diagnoses if asks is None else asks
        """The rules are asked here, not by the run itself."""
        self._asked: list[Event] = []
        self._opened: list[Readable] = []

        def open_history() -> Readable:
            self._opened.append(open_again())
            return self._opened[-1]

        self._doctor = (
            Diagnostician(
                open_history, self._asked.append, thresholds=thresholds, say=lambda _: None
            )
            if self.asks
            else None
        )
        self._open: dict[str, Finding] = {}
        self._heard: set[tuple[str, str, float]] = set()
        self._stalled: str | None = None
        """The id of the finding that the run does not go on."""
        self._silent_since = 0.0
        self._first = True
        self._has_ended = False
        """The rules have been asked for the last time."""
        self.status = "running"
        """As of the last look: running, finished, failed or died."""

    @property
    def findings(self) -> list[Finding]:
        """Those that are open, the worst first."""
        return sorted(self._open.values(), key=lambda one: (-one.severity.rank, one.first_step))

    @property
    def ended_badly(self) -> bool:
        """The run failed or died, or an error is still open."""
        worst = self.findings[:1]
        return self.status in ("failed", "died") or any(
            one.severity is Severity.ERROR for one in worst
        )

    @property
    def spent_s(self) -> float:
        """Processor seconds that asking the rules took so far; they have a budget of their own."""
        return 0.0 if self._doctor is None else self._doctor.spent_s

    def look(self) -> list[Event]:
        """What opened, got worse or is over since the last look.

        The first look tells what is open already. After the look at which `status` is no longer
        running there is nothing more to come.
        """
        # First the status: what a run has to say it stores before its end.
        self.status = self._history.status
        told = [event for event in (*self._said(), *self._found()) if self._is_news(event)]
        return [*told, *(event for event in self._life() if self._is_news(event))]

    def close(self) -> None:
        """Let go of what was opened here."""
        for history in self._opened:
            history.close()

    def _said(self) -> Iterator[Event]:
        """What the run's own diagnosis stored since the last look; at first, how all of it is."""
        if self.asks and not self._first:
            return
        fresh: dict[str, list[Event]] = {}
        for event in self._history.events("finding"):
            try:
                name, id_ = Finding.from_json(event.data["finding"]).name, str(event.data["id"])
            except (KeyError, TypeError, ValueError, AttributeError):
                continue  # of another version, or somebody's own event of that name
            mark = (id_, str(event.data.get("state", "opened")), event.time)
            if mark not in self._heard:
                self._heard.add(mark)
                data = {**event.data, "id": id_, "name": name, "state": mark[1]}
                fresh.setdefault(id_, []).append(replace(event, data=data))
        for events in fresh.values():
            yield from events[-1:] if self._first else events
        self._first = False

    def _found(self) -> Iterator[Event]:
        """What the rules say that are asked here."""
        if self._doctor is None or self._has_ended:
            return
        self._doctor.stored(len(self._history.steps()))
        if self.status == "running":
            self._doctor.tick()
        else:
            self._doctor.close(self.status)
            self._has_ended = True
        events = list(self._asked)
        self._asked.clear()
        yield from (event for event in events if event.data["name"] != STALLED)

    def _life(self) -> Iterator[Event]:
        """That the run hangs, goes on again, or died."""
        one = pulse(self._history, thresholds=self._limits, now=self._clock())
        if self._history.status != self.status:
            return  # it ended while we looked: the next look tells how
        id_ = self._stalled
        if one is not None:
            word = "died" if self.status == "died" else STALLED
            if id_ is not None and id_.startswith(word):
                return  # steps of before the silence may still come in; it is the same silence
            if id_ is not None:
                self._open.pop(id_, None)  # it hung, and now it is dead
            self._stalled = f"{word}@{one.first_step}"
            self._silent_since = self._clock() - (one.evidence[0].value or 0.0)
            yield self._event(self._stalled, one, "opened", one_line(one))
        elif id_ is not None:
            self._stalled = None
            steps, known = self._history.steps(), self._open[id_]
            step = int(steps[-1]) if len(steps) else known.last_step
            over = replace(known, last_step=step, resolved_step=step)
            goes_on = f"goes on after {num(self._clock() - self._silent_since)} s"
            why = goes_on if self.status == "running" else self.status
            yield self._event(id_, over, "resolved", f"{over.name}: {why}")

    def _event(self, id_: str, one: Finding, state: str, text: str) -> Event:
        data = {"id": id_, "name": one.name, "state": state, "finding": one.to_json()}
        return Event(one.last_step, self._clock(), "finding", text, data)

    def _is_news(self, event: Event) -> bool:
        """Whether it opened, got worse, or is over and was told to be open."""
        id_, one = str(event.data["id"]), Finding.from_json(event.data["finding"])
        known = self._open.get(id_)
        if event.data.get("state") == "resolved" or not one.is_open:
            return self._open.pop(id_, None) is not None
        self._open[id_] = one
        return known is None or one.severity.rank > known.severity.rank
