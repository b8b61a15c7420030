"""A slow, failing or missing tracker never slows or breaks the training, and is told once."""

import logging
import threading
from pathlib import Path

import pytest

import torchvitals
from torchvitals.record import Event, MissingExtra, Row, RunInfo
from torchvitals.sinks import outlet as outlets
from torchvitals.sinks.fan import Fan
from torchvitals.sinks.sink import Sink, need

from .training import info, row, rows, train


class Stuck(Sink):
    """Never comes back."""

    name = "stuck"
    patience_s = 0.2

    def __init__(self, where: str = "write") -> None:
        self.release = threading.Event()
        self.where = where

    def open(self, info: RunInfo, folder: Path) -> None:
        self._stop("open")

    def write(self, row: Row) -> None:
        self._stop("write")

    def close(self, status: str) -> None:
        self._stop("close")

    def _stop(self, here: str) -> None:
        if here == self.where:
            self.release.wait()


class Fails(Sink):
    name = "fails"

    def __init__(self, where: str = "write", times: int = 10**9) -> None:
        self.where = where
        self.times = times
        self.written: list[int] = []

    def open(self, info: RunInfo, folder: Path) -> None:
        self._fail("open")

    def write(self, row: Row) -> None:
        self._fail("write")
        self.written.append(row.step)

    def event(self, event: Event) -> None:
        self._fail("event")

    def flush(self) -> None:
        self._fail("flush")

    def close(self, status: str) -> None:
        self._fail("close")

    def _fail(self, here: str) -> None:
        if here == self.where and self.times > 0:
            self.times -= 1
            raise ConnectionError("no route to tracker")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("where", ["open", "write", "close"])
def test_one_that_never_comes_back_is_left_behind(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = Stuck(where)
    try:
        losses = train(tmp_path / "run", [stuck], steps=8)
    finally:
        stuck.release.set()
    history = torchvitals.open_run(tmp_path / "run")
    assert history.series("loss").values.tolist() == pytest.approx(losses)
    assert history.status == "finished"
    assert history.steps("gradient").tolist() == list(range(1, 9))
    (told,) = warnings(caplog)
    assert "stuck did not take what was left within 0 s" in told
    assert "complete in its own file" in told


def test_the_training_is_the_same_with_and_without(tmp_path: Path) -> None:
    stuck = Stuck()
    try:
        assert train(tmp_path / "a", [stuck, Fails()]) == train(tmp_path / "b", None)
    finally:
        stuck.release.set()


@pytest.mark.parametrize("where", ["open", "write", "event", "flush", "close"])
def test_one_that_raises_is_told_once(
    where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "run", [Fails(where)], steps=8)
    told = [text for text in warnings(caplog) if "can't be forwarded" in text]
    assert len(told) == 1
    assert "fails" in told[0]
    assert "no route to tracker" in told[0]
    assert "Training goes on" in told[0]
    history = torchvitals.open_run(tmp_path / "run")
    assert len(history.series("loss").steps) == 8
    (event,) = history.events("sink")
    assert event.data == {"sink": "fails"}
    assert "no route" not in event.text


def test_rows_that_did_not_get_there_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    fan = Fan([Fails(times=2)], info(), Path())
    fan.rows(rows(range(1, 6)))
    fan.close("finished")
    assert fan.outlets[0].num_dropped == 2
    assert warnings(caplog)[-1].startswith("torchvitals: 2 rows did not get to fails")


def test_it_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    sink = Fails(times=1)
    fan = Fan([sink], info(), Path())
    fan.rows(rows([1, 2, 3]))
    fan.close("finished")
    assert sink.written == [2, 3]
    assert len([text for text in warnings(caplog) if "can't be forwarded" in text]) == 1


def test_after_some_failures_running_it_is_left_alone_for_a_while() -> None:
    sink = Fails(times=outlets.PATIENCE)
    fan = Fan([sink], info(), Path())
    fan.rows(rows(range(1, 10)))
    fan.close("finished")
    assert sink.times == 0
    assert sink.written == []
    assert fan.outlets[0].num_dropped == 9


def test_a_queue_that_is_full_drops_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck("open")
    fan = Fan([stuck], info(), Path())
    many = outlets.WAITING + 40
    fan.rows([row(step, loss=1.0) for step in range(1, many + 1)])
    fan.tick()
    assert fan.outlets[0].num_dropped == 40
    fan.close("finished")
    stuck.release.set()
    (told,) = warnings(caplog)
    assert f"{many} rows did not get there" in told


class Absent(Sink):
    name = "absent"

    def open(self, info: RunInfo, folder: Path) -> None:
        need("a_package_that_is_nowhere.part", extra="absent")

    def write(self, row: Row) -> None:
        raise AssertionError


def test_a_missing_package_is_told_once_with_the_pip_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path / "run", [Absent()])
    (told,) = warnings(caplog)
    assert "rows can't be forwarded to absent" in told
    assert "pip install 'torchvitals[absent]'" in told
    with pytest.raises(MissingExtra):
        need("a_package_that_is_nowhere", extra="absent")


class OnlyWrites:
    """An object of somebody else's."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def write(self, row: Row) -> None:
        self.steps.append(row.step)


def test_an_object_needs_write_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = OnlyWrites()
    train(tmp_path / "run", sink, steps=5)
    assert sink.steps == [1, 2, 3, 4, 5]
    assert not warnings(caplog)


def test_numbers_that_were_too_many_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fan = Fan([OnlyWrites()], info(), Path())
    fan.rows([row(1, **{f"n{k}": 1.0 for k in range(12)})])
    fan.close("finished")
    (told,) = warnings(caplog)
    assert "4 of the numbers you logged" in told
    assert "series='.*'" in told


def test_threads_end_with_the_run(tmp_path: Path) -> None:
    train(tmp_path / "run", ["jsonl", "csv"])
    assert not [t for t in threading.enumerate() if t.name.startswith("torchvitals ")]
