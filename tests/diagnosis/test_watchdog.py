"""The watchdog over runs that are written while it looks, by clocks of our own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.rules.builder import RunBuilder
from torchvitals.diagnosis import Watchdog, pulse
from torchvitals.record import Event, Evidence, Finding, Key, Row, RunInfo, Severity
from torchvitals.rules.thresholds import Thresholds
from torchvitals.store import History, RunWriter, attempts, open_run
from torchvitals.store.attempts import HEARTBEAT_STALE_S

NOW = time.time()


class Place:
    """A run that is written, and a watchdog that looks at it; both by the clock `now`."""

    def __init__(self, path: Path, **watch: Any) -> None:
        self.path, self.now = path, NOW
        self._info = RunInfo(name="run", watch={"diagnose": True, **watch})
        self._open: list[History] = []
        self.begin()

    def begin(self) -> None:
        self.writer = RunWriter.create(self.path, self._info, resume=True, clock=lambda: self.now)

    def steps(self, *steps: int) -> None:
        for step in steps:
            self.now += 1.0
            self.writer.append(Row(step, self.now, (Key.scalar("loss"),), np.ones(1, np.float32)))
        self.writer.commit()

    def found(self, name: str, state: str = "opened", severity: str = "warning") -> None:
        one = Finding(
            name=name, severity=Severity(severity), sites=("fc",), first_step=1, last_step=2,
            evidence=(Evidence(text="so it is"),), explanation="It is so.",
            resolved_step=2 if state == "resolved" else None,
        )  # fmt: skip
        self.now += 0.1
        data = {"id": f"{name}@1", "name": name, "state": state, "finding": one.to_json()}
        self.writer.event(Event(2, self.now, "finding", f"{name}: over", data))
        self.now += 1.0
        self.writer.commit()

    def open(self) -> History:
        self._open.append(History(self.path, clock=lambda: self.now))
        return self._open[-1]

    def watchdog(self, **limits: float) -> Watchdog:
        return Watchdog(
            self.open(), self.open, thresholds=Thresholds(**limits), clock=lambda: self.now
        )

    def close(self) -> None:
        self.writer.close()
        for history in self._open:
            history.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    one = Place(tmp_path / "run")
    yield one
    one.close()


def said(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.data["name"], event.data["state"]) for event in events]


def test_what_is_open_is_told_at_first_then_only_news(place: Place) -> None:
    place.steps(1, 2)
    for name in ("old", "gone"):
        place.found(name)
    place.found("gone", "resolved")
    dog = place.watchdog()
    assert said(dog.look()) == [("old", "opened")]
    assert dog.look() == []
    place.found("new")
    place.found("old", "updated")
    assert said(dog.look()) == [("new", "opened")]
    place.found("old", "updated", "error")
    assert said(dog.look()) == [("old", "updated")], "it got worse"
    assert [one.name for one in dog.findings] == ["old", "new"]
    assert dog.ended_badly
    place.found("old", "resolved")
    place.found("brief")
    place.found("brief", "resolved")
    assert said(dog.look()) == [("old", "resolved"), ("brief", "opened"), ("brief", "resolved")]
    assert [one.name for one in dog.findings] == ["new"]
    place.writer.close()
    assert dog.look() == []
    assert (dog.status, dog.ended_badly) == ("finished", False)


def test_events_that_are_no_findings_are_passed_over(place: Place) -> None:
    """Anybody may store an event of that kind."""
    one = Finding(
        name="own", severity=Severity.INFO, sites=(), first_step=1, last_step=1, evidence=(),
        explanation="It is so.",
    ).to_json()  # fmt: skip
    for data in ({}, {"id": 1, "finding": "a text"}, {"id": 1, "finding": {}}, {"finding": one}):
        place.writer.event(Event(1, place.now, "finding", "x", data))
    place.writer.event(Event(1, place.now, "finding", "x", {"id": 7, "finding": one}))
    place.steps(1)
    (event,) = place.watchdog().look()
    assert (event.data["id"], event.data["name"], event.data["state"]) == ("7", "own", "opened")


def test_silence_is_told_once_and_is_over_with_the_next_step(place: Place) -> None:
    dog = place.watchdog()
    place.steps(*range(1, 20))
    assert dog.look() == []
    place.now += 59
    assert dog.look() == [], "a minute at least"
    place.now += 2
    place.writer.commit()  # a heartbeat alone is not a step
    (event,) = dog.look()
    assert (event.data["id"], event.data["state"]) == ("stalled@19", "opened")
    assert "no step for 61 s, the median gap is 1 s" in event.data["finding"]["explanation"]
    place.now += 30
    assert dog.look() == []
    assert dog.ended_badly
    place.steps(20)
    (event,) = dog.look()
    assert (event.data["id"], event.data["state"]) == ("stalled@19", "resolved")
    assert event.text == "stalled: goes on after 92 s"
    assert event.data["finding"]["resolved_step"] == 20
    assert not dog.ended_badly
    place.now += 100
    assert said(dog.look()) == [("stalled", "opened")]
    place.writer.close()
    (event,) = dog.look()
    assert (event.text, dog.ended_badly) == ("stalled: finished", False)


def test_steps_of_before_the_silence_that_come_late_do_not_open_it_twice(place: Place) -> None:
    """A process that was stopped stores what it had measured before, when it goes on."""
    place.steps(*range(1, 20))
    dog = place.watchdog()
    place.now += 70
    assert said(dog.look()) == [("stalled", "opened")]
    row = Row(20, place.now - 69, (Key.scalar("loss"),), np.ones(1, np.float32))
    place.writer.append(row)
    place.writer.commit()
    assert dog.look() == []
    place.steps(21)
    assert said(dog.look()) == [("stalled", "resolved")]


def test_slow_steps_are_waited_for(place: Place) -> None:
    dog = place.watchdog()
    for step in range(1, 10):
        place.now += 29
        place.steps(step)
    place.now += 299
    place.writer.commit()
    assert dog.look() == []
    place.now += 2
    assert said(dog.look()) == [("stalled", "opened")]


def test_a_limit_in_seconds_holds_before_the_first_step(place: Place) -> None:
    dog = place.watchdog(stall_factor=0.0, stall_least_s=5.0)
    place.now += 4
    assert dog.look() == []
    place.now += 2
    (event,) = dog.look()
    assert event.data["finding"]["explanation"] == "The run hangs: no step for 6 s."


def test_a_resumed_run_may_take_its_time_to_load(place: Place) -> None:
    place.steps(*range(1, 20))
    place.writer.close()
    place.now += 10_000
    place.begin()
    with place.open() as history:
        place.now += 30
        assert pulse(history, now=place.now) is None
        place.now += 40
        assert pulse(history, now=place.now) is not None


def test_on_another_machine_the_heartbeat_decides(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.steps(*range(1, 20))
    host = place.open().attempts[-1].host
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    dog = place.watchdog()
    assert dog.look() == []
    place.now += HEARTBEAT_STALE_S + 1
    (event,) = dog.look()
    assert (event.data["id"], dog.status) == ("died@19", "died")
    assert f"no heartbeat from {host} any more" in event.data["finding"]["explanation"]
    assert event.data["finding"]["confidence"] == 0.8
    place.steps(20)
    assert said(dog.look()) == [("stalled", "resolved")]
    assert dog.status == "running"


def test_a_run_that_hung_and_died_is_told_of_both(place: Place, tmp_path: Path) -> None:
    place.steps(*range(1, 20))
    dog = place.watchdog()
    place.now += 100
    dog.look()
    # The kernel lets go of a killed process's lock; the file says running for ever.
    (tmp_path / "run" / "run.lock").unlink()
    (event,) = dog.look()
    assert (event.data["id"], event.data["state"]) == ("died@19", "opened")
    assert [one.explanation for one in dog.findings] == [
        "The run died: its process is gone without a word: it was killed, or the machine went down."
    ]
    assert dog.look() == []


def test_a_run_that_ends_while_it_is_asked_for_is_not_dead(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its status is stored before its lock is let go; both may happen between two of our looks."""
    place.steps(1, 2, 3)

    def ends(_folder: Path) -> bool:
        place.writer.close()
        return False

    monkeypatch.setattr(attempts, "is_locked", ends)
    assert place.open().status == "finished"


def test_a_full_memory_is_named(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", steps=20)
    builder["machine/system/memory_frac"] = 0.97
    builder.write("died")
    with open_run(tmp_path / "run") as history:
        found = pulse(history)
    assert found is not None
    assert found.evidence[1].text == "the machine's memory was 97 % full when it was last seen"
    assert found.causes[0].text.startswith("out of memory")


@pytest.mark.parametrize("diagnoses", [False, None])
def test_where_the_run_does_not_diagnose_itself_the_rules_are_asked(
    tmp_path: Path, diagnoses: bool | None
) -> None:
    builder = RunBuilder(tmp_path / "run", steps=60)
    builder.each("gradient/{}/num_nan", lambda t: float(t >= 30))
    settings = {**builder.info.watch, "diagnose": diagnoses}
    builder.info = replace(builder.info, watch=settings)
    builder.write()
    with open_run(builder.path) as history:
        dog = Watchdog(history, partial(open_run, builder.path), thresholds=Thresholds())
        assert dog.asks
        (event, *_) = dog.look()
        dog.close()
    assert said([event]) == [("non_finite", "opened")]
    assert dog.ended_badly
    assert dog.spent_s > 0
    with open_run(builder.path) as history:
        quiet = Watchdog(
            history, partial(open_run, builder.path), thresholds=Thresholds(), asks=False
        )
        assert quiet.look() == []
