"""`vitals status`: printed once, and following runs that other processes write."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Vitals
from tests.cli.processes import VITALS, environment, vitals, vitals_without_torch
from tests.cli.test_commands import strict
from tests.cli.told_writer import ToldWriter
from tests.views.made_runs import make_run
from tests.views.paced_runs import make_paced

ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


class Terminal:
    """A terminal in which a command runs."""

    def __init__(self, *arguments: str, columns: int = 100, lines: int = 50) -> None:
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process = subprocess.Popen(
            [str(VITALS), *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            env=environment(TERM="xterm-256color"),
            start_new_session=True,
        )
        os.close(other)
        self.seen = ""

    def wait_for(self, text: str, *, seconds: float = 60) -> None:
        """Until that is on the screen, in what was printed since the last time."""
        end = time.monotonic() + seconds
        while text not in self.plain():
            if time.monotonic() > end or not self._read(end - time.monotonic()):
                raise AssertionError(f"{text!r} did not come in:\n{self.plain()}")

    def finish(self) -> int:
        """The exit code, with everything read."""
        end = time.monotonic() + 60
        while self._read(end - time.monotonic()):
            pass
        return self.process.wait(1)

    def plain(self) -> str:
        return ESCAPES.sub("", self.seen)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._main)

    def _read(self, seconds: float) -> bool:
        if not select.select([self._main], [], [], max(seconds, 0))[0]:
            return False
        try:
            part = os.read(self._main, 65536)
        except OSError:  # the terminal closes with its last process
            return False
        self.seen += part.decode(errors="replace")
        return bool(part)


@contextmanager
def terminal(*arguments: str, columns: int = 100, lines: int = 50) -> Iterator[Terminal]:
    one = Terminal(*arguments, columns=columns, lines=lines)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def told(in_tmp: Path) -> Iterator[ToldWriter]:
    """runs/told, 40 of 100 steps done, still running."""
    with ToldWriter(in_tmp / "runs" / "told", 100) as writer:
        writer.tell(40)
        yield writer


class TestFollowing:
    def test_until_the_run_finishes(self, told: ToldWriter) -> None:
        with terminal("status", "told", "--interval", "0.1") as screen:
            screen.wait_for("step 40 of 100")
            screen.wait_for(" left")
            told.tell(30)
            screen.wait_for("step 70 of 100")
            screen.wait_for("70 %")
            told.tell("finished")
            assert screen.finish() == 0
        last = screen.plain().rpartition("runs/told")[2]
        assert last.startswith("  finished · step 70 of 100")
        assert "52.9k tokens/s" in last
        assert "backward 52 %" in last

    @pytest.mark.parametrize("how", ["failed", "died"])
    def test_a_run_that_ends_badly(self, told: ToldWriter, how: str) -> None:
        with terminal("status", "told", "--interval", "0.1") as screen:
            screen.wait_for("running")
            if how == "failed":
                told.tell(how)
            else:
                told.kill()
            assert screen.finish() == 1
        assert f"runs/told  {how} · step 40 of 100" in screen.plain()
        assert "Traceback" not in screen.plain()

    def test_ctrl_c_leaves_quietly(self, told: ToldWriter) -> None:
        with terminal("status", "told") as screen:
            screen.wait_for("step 40")
            screen.process.send_signal(signal.SIGINT)
            assert screen.finish() == 0
        for word in ("interrupted", "Aborted", "Traceback"):
            assert word not in screen.plain()
        # The cursor that was hidden is back, and the run goes on.
        assert screen.seen.rstrip().endswith("\x1b[?25h")
        assert told.process.poll() is None

    @pytest.mark.usefixtures("told")
    def test_the_clock_goes_on_between_two_rows(self) -> None:
        with terminal("status", "told", "--interval", "0.1") as screen:
            screen.wait_for("step 40")
            begun = screen.plain().count("step 40")
            end = time.monotonic() + 30
            while screen.plain().count("step 40") < begun + 3 and time.monotonic() < end:
                screen._read(1)
            assert screen.plain().count("step 40") >= begun + 3

    @pytest.mark.parametrize("columns", [60, 80])
    def test_nothing_is_wider_than_the_terminal(self, told: ToldWriter, columns: int) -> None:
        with terminal("status", "told", "--interval", "0.1", columns=columns) as screen:
            screen.wait_for("memory")
            told.tell("finished")
            screen.finish()
        assert max(map(len, re.split(r"[\r\n]+", screen.plain()))) <= columns


class TestOnce:
    @pytest.mark.usefixtures("told")
    def test_a_pipe_gets_it_once(self) -> None:
        done = vitals("status", "told")
        assert done.returncode == 0
        assert done.stderr == ""
        assert "\x1b" not in done.stdout
        assert done.stdout.startswith("runs/told  running · step 40 of 100")
        assert max(map(len, done.stdout.splitlines())) <= 100
        for part in ("progress ", "loss ", "speed ", "time ", "memory ", "step time "):
            assert f"\n{part}" in done.stdout

    @pytest.mark.usefixtures("told")
    def test_once_on_a_terminal(self) -> None:
        with terminal("status", "told", "--once") as screen:
            assert screen.finish() == 0
        assert screen.plain().count("runs/told") == 1

    @pytest.mark.usefixtures("told")
    def test_json(self) -> None:
        done = vitals("status", "--json")
        found = strict(done.stdout)
        assert (found["name"], found["status"]) == ("told", "running")
        progress = found["pace"]["progress"]
        assert (progress["step"], progress["total_steps"]) == (40, 100)
        assert 0 < progress["eta_s"] <= 60 * 0.32
        assert found["pace"]["shares"]["backward"] == pytest.approx(0.52)
        assert found["loss"]["num_values"] == 40
        # Which run was taken is said beside the document.
        assert done.stderr == "runs/told, the run that is running\n"

    def test_exit_codes(self, in_tmp: Path, run: Vitals) -> None:
        for status, code in (("finished", 0), ("failed", 1)):
            make_paced(in_tmp / "runs" / status, num_steps=20, status=status)
            assert run("status", status).exit_code == code
            assert run("status", status, "--json").exit_code == code
            assert f"runs/{status}  {status}" in run("status", status, "--once").output
        assert run("status", "nothing").exit_code == 2
        assert run("status", "finished", "--interval", "0").exit_code == 2

    def test_an_older_run(self, in_tmp: Path, run: Vitals) -> None:
        make_run(in_tmp / "runs" / "old")
        done = run("status", "old")
        assert done.exit_code == 0
        assert done.output.startswith("runs/old  finished · step 40 · ")
        for name in ("speed", "time ", "memory", "progress"):
            assert f"\n{name}" not in done.output

    def test_torch_is_not_needed(self, in_tmp: Path) -> None:
        make_paced(in_tmp / "runs" / "run", num_steps=20)
        done = vitals_without_torch("status", "run")
        assert done.returncode == 0, done.stderr


class TestWithoutAName:
    def test_the_newest_that_is_running(self, in_tmp: Path, told: ToldWriter, run: Vitals) -> None:
        make_paced(in_tmp / "runs" / "later", num_steps=5)
        done = run("status")
        assert done.stderr == "runs/told, the run that is running\n"
        with ToldWriter(in_tmp / "runs" / "second", 100) as second:
            second.tell(1)
            assert run("status").stderr == "runs/second, the newest of 2 that are running\n"
        told.kill()
        done = run("status")
        assert done.stderr == "runs/second, the newest run; none is running\n"
        assert done.exit_code == 1

    def test_broken_runs_are_passed_over(self, in_tmp: Path, run: Vitals) -> None:
        make_paced(in_tmp / "runs" / "good", num_steps=5)
        (in_tmp / "runs" / "bad").mkdir()
        (in_tmp / "runs" / "bad" / "run.vitals").write_bytes(b"x" * 5000)
        assert run("status").stderr.startswith("runs/good, the newest run")

    @pytest.mark.usefixtures("in_tmp")
    def test_no_runs_at_all(self) -> None:
        done = vitals("status")
        assert done.returncode == 2
        assert done.stderr.startswith("vitals: there are no runs under ./runs")
        assert done.stderr.count("\n") == 1


class TestShow:
    def test_the_pace_is_in_the_summary(self, in_tmp: Path, run: Vitals) -> None:
        make_paced(in_tmp / "runs" / "paced", num_steps=100)
        summary = json.loads(run("show", "paced", "--json").output)["summary"]
        assert summary["pace"]["mfu"] == pytest.approx(0.41)
        assert summary["pace"]["progress"]["step"] == 100
        before = json.loads(run("show", "paced", "--json", "--step", "50").output)["summary"]
        assert before["pace"]["progress"]["step"] == 50

    def test_kinds_beside_the_tensors(self, in_tmp: Path, run: Vitals) -> None:
        make_paced(in_tmp / "runs" / "paced", num_steps=100)
        for kind, title in (
            ("clock", "Time of a step"),
            ("speed", "Throughput"),
            ("machine", "Machine"),
            ("eval", "Evaluations"),
            ("noise", "Gradient noise scale"),
        ):
            assert run("show", "paced", "--kind", kind).output.startswith(f"{title}\n")
        assert "Nothing of kind category" in run("show", "paced", "--kind", "category").output
