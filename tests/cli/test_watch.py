"""`vitals watch`: real trainings that are stopped, go on, are killed, and end well."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.receivers import Hook
from tests.cli.conftest import Vitals
from tests.cli.processes import VITALS, environment, vitals_without_torch
from tests.cli.test_status import terminal
from tests.cli.told_writer import ToldWriter
from torchvitals.diagnosis import diagnose
from torchvitals.record import RunInfo
from torchvitals.store import RunWriter, open_run

TRAINING = Path(__file__).with_name("watched_training.py")
PATIENCE_S = 120.0
INFO = RunInfo(name="new")


@contextmanager
def training(run: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, str(TRAINING), run, *words],
        stderr=subprocess.DEVNULL,
        env=environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Watching:
    """`vitals watch --json` in a process of its own, read while it goes on."""

    def __init__(self, *arguments: str, **env: str) -> None:
        self.process = subprocess.Popen(
            [str(VITALS), "watch", *arguments, "--json", "--interval", "0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**env),
        )
        self.said: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.said.append(json.loads(line))
                self._news.notify_all()

    def until(self, what: Callable[[], Any]) -> None:
        with self._news:
            assert self._news.wait_for(what, PATIENCE_S), self.said

    def state(self, name: str) -> str | None:
        """How the finding of that name was told last."""
        told = [one["state"] for one in self.said if one.get("name") == name]
        return told[-1] if told else None

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._thread.join()
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def watching(*arguments: str, **env: str) -> Iterator[Watching]:
    one = Watching(*arguments, **env)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    yield server
    server.close()


@pytest.mark.usefixtures("in_tmp")
def test_a_training_with_a_fault_is_stopped_goes_on_and_is_killed(hook: Hook) -> None:
    """Watched from before it begins, with somebody who is told."""
    with (
        watching("sick", "--wait", "120", "--stall", "1", "--alerts", "error",
                 VITALS_ALERT_URLS=hook.url) as watch,
        training("runs/sick", "fault") as trainer,
    ):  # fmt: skip
        watch.until(lambda: watch.state("orphan_parameter") == "opened")
        assert trainer.poll() is None, "the finding comes while the training goes on"
        trainer.send_signal(signal.SIGSTOP)
        watch.until(lambda: watch.state("stalled") == "opened")
        trainer.send_signal(signal.SIGCONT)
        watch.until(lambda: watch.state("stalled") == "resolved")
        trainer.kill()
        assert watch.end() == 1
    first, *_, died, last = watch.said
    assert (first["event"], first["pid"], first["is_here"]) == ("attached", trainer.pid, True)
    assert first["asks"] is False
    opened = next(one for one in watch.said if one.get("name") == "stalled")
    assert f"py-spy dump --pid {trainer.pid}" in opened["finding"]["fix"]
    assert (died["name"], died["state"]) == ("stalled", "opened")
    assert "The run died" in died["finding"]["explanation"]
    assert died["id"] != opened["id"]
    assert (last["event"], last["status"]) == ("ended", "died")
    assert set(last["open"]) >= {"stalled", "orphan_parameter"}
    sent = str(hook.taken)
    assert "The run died" in sent
    assert "orphan_parameter" in sent
    # Nothing was written for it: whoever reads the run comes to the same verdict.
    with open_run("runs/sick") as history:
        stored = {one.name for one in history.findings()}
        assert "orphan_parameter" in stored
        assert "stalled" not in stored
        assert {one.name for one in diagnose(history).findings} >= {"stalled", "orphan_parameter"}


def test_a_training_that_ends_well_and_does_not_diagnose_itself(in_tmp: Path) -> None:
    with (
        training("runs/well", "undiagnosed") as trainer,
        subprocess.Popen(
            [str(VITALS), "watch", "well", "--wait", "120", "--interval", "0.1"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as watch,
    ):
        assert watch.stdout is not None
        first = watch.stdout.readline()  # it is there while the run goes on
        (in_tmp / "runs" / "well" / "stop").touch()
        said = (first + watch.stdout.read()).splitlines()
    assert watch.returncode == 0, said
    title, _, *facts = said[:5]
    assert title.startswith("runs/well  running · ")
    assert [fact.split(maxsplit=1) for fact in facts] == [
        ["process", f"{trainer.pid} on this machine: its death shows at once"],
        ["findings", "of the rules, asked from here"],
        ["stalled", "after 60 s without a step, or 10 usual ones if that is longer"],
    ]
    assert "  finished · step " in said[-1] + said[-2]
    assert not [line for line in said if "error" in line or "\x1b" in line or len(line) > 100]
    assert open_run(in_tmp / "runs" / "well").status == "finished"


@pytest.fixture
def told(in_tmp: Path) -> Iterator[ToldWriter]:
    """runs/told, 40 of 100 steps done, still running."""
    with ToldWriter(in_tmp / "runs" / "told", 100) as writer:
        writer.tell(40)
        yield writer


def test_a_terminal_shows_that_the_run_goes_on(told: ToldWriter) -> None:
    with terminal("watch", "--interval", "0.1", columns=80) as screen:
        screen.wait_for("runs/told, the run that is running")
        screen.wait_for("step 40 of 100 · 40 % · ")
        told.tell(30)
        screen.wait_for("step 70 of 100 · 70 %")
        told.kill()
        assert screen.finish() == 1
    plain = screen.plain()
    assert "✗ error  stalled  the process · since step 70 · 95 % sure" in plain
    assert "died · step 70 of 100" in plain
    assert "vitals diagnose runs/told" in plain
    # The line at the bottom is gone, the cursor is back.
    assert screen.seen.rindex("\x1b[?25h") > screen.seen.rindex("●")
    assert max(len(line) for part in plain.splitlines() for line in part.split("\r")) <= 80


def test_exit_on_leaves_a_run_that_hangs(told: ToldWriter, run: Vitals) -> None:
    done = run("watch", "told", "--stall", "0.1", "--exit-on", "stalled", "--json")
    assert done.exit_code == 1, done.output
    attached, *_, found, left = map(json.loads, done.output.splitlines())
    assert attached["asks"] is True
    assert found["finding"]["name"] == "stalled"
    assert (left["event"], left["status"]) == ("left", "running")
    assert told.process.poll() is None
    assert run("watch", "told", "--stall", "0.1", "--exit-on", "error").exit_code == 1


def test_ctrl_c_leaves_quietly_and_the_run_goes_on(told: ToldWriter) -> None:
    with watching("told") as watch:
        watch.until(lambda: watch.said)
        watch.process.send_signal(signal.SIGINT)
        assert watch.end() == 0
        assert watch.process.stderr is not None
        assert watch.process.stderr.read() == ""
    assert told.process.poll() is None


class TestInThisProcess:
    def test_a_run_that_failed(self, told: ToldWriter, run: Vitals) -> None:
        told.tell("failed")
        done = run("watch", "told")
        assert done.exit_code == 1
        assert done.output.startswith("runs/told  failed · step 40 of 100\n")
        assert "vitals diagnose runs/told" in done.output

    def test_a_run_that_ended_well_is_left_at_once(self, told: ToldWriter, run: Vitals) -> None:
        told.tell("finished")
        done = run("watch", "told", "--json")
        assert done.exit_code == 0
        said = [json.loads(line) for line in done.output.splitlines()]
        assert (said[0]["event"], said[0]["status"]) == ("attached", "finished")
        assert (said[-1]["event"], said[-1]["status"], said[-1]["step"]) == (
            "ended",
            "finished",
            40,
        )
        assert vitals_without_torch("watch", "told").returncode == 0
        # It says nothing of a diagnosis of its own, so the rules were asked, once, at its end.
        assert [one["name"] for one in said[1:-1]] == said[-1]["open"]

    @pytest.mark.usefixtures("in_tmp")
    def test_a_run_that_does_not_begin(self, run: Vitals) -> None:
        done = run("watch", "nothing", "--wait", "0.1")
        assert done.exit_code == 2
        assert "Waiting up to 0.1 s for nothing to begin." in done.stderr
        assert "there is no run 'nothing' here" in done.stderr
        assert "Waiting" not in run("watch", "nothing", "--wait", "0").stderr

    def test_a_name_like_another(self, told: ToldWriter, run: Vitals) -> None:
        assert told.process.poll() is None
        done = run("watch", "tld", "--wait", "0.1")
        assert "to begin. Did you mean runs/told?" in done.stderr

    @pytest.mark.usefixtures("in_tmp")
    def test_a_file_in_the_making_is_waited_for(self, run: Vitals) -> None:
        Path("runs/new").mkdir(parents=True)
        Path("runs/new/run.vitals").touch()
        done = run("watch", "new", "--wait", "0.1")
        assert done.exit_code == 1
        assert "is empty" in done.stderr
        begins = threading.Timer(0.3, lambda: RunWriter.create("runs/new", INFO).close())
        begins.start()
        done = run("watch", "new", "--wait", "120")
        begins.join()
        assert done.exit_code == 0, done.output
        assert "Waiting up to 120 s for new to begin." in done.stderr

    @pytest.mark.parametrize(
        ("given", "text"),
        [
            (["--exit-on", "stalld"], "did you mean stalled?"),
            (["--threshold", "stall_leest_s=3"], "Did you mean stall_least_s?"),
            (["--stall", "0"], "--stall"),
            (["--alerts", "loud"], "--alerts"),
        ],
    )
    @pytest.mark.usefixtures("in_tmp")
    def test_wrong_options(self, run: Vitals, given: list[str], text: str) -> None:
        done = run("watch", "told", *given)
        assert done.exit_code == 2
        assert text in done.stderr
