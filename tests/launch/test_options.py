"""What `vitals run` was asked for arrives: guard, page, stop; by options and by variables."""

from __future__ import annotations

import math
import re
import signal
import subprocess
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from tests.launch.scripted import VITALS, environment, script
from tests.launch.test_process import vitals_run
from torchvitals.store.history import open_run


def losses(stdout: str) -> list[float]:
    return [float.fromhex(line.split()[1]) for line in stdout.splitlines()]


def test_a_guard(tmp_path: Path) -> None:
    done = vitals_run("--run", "run", "--guard", "skip", script("ill.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    printed = losses(done.stdout)
    assert len(printed) == 101
    assert [step for step, loss in enumerate(printed, start=1) if math.isnan(loss)] == [30]
    assert "guard, step 30: non-finite" in done.stderr
    with open_run(tmp_path / "run") as history:
        assert {event.step for event in history.events("guard")} == {30}


def test_stopping_by_a_variable(tmp_path: Path) -> None:
    done = vitals_run(
        script("ill.py"), cwd=tmp_path, VITALS_RUN="run", VITALS_EVERY="1", VITALS_STOP_ON="error"
    )
    assert done.returncode == 1
    assert 30 < len(losses(done.stdout)) < 4000
    assert "StopTraining: torchvitals: error: non_finite" in done.stderr
    with open_run(tmp_path / "run") as history:
        assert history.status == "failed"


def test_the_page(tmp_path: Path) -> None:
    """It is there while the script runs, and ends with it."""
    process = subprocess.Popen(
        [str(VITALS), "run", "--run", "runs/net", "--ui", script("endless.py")], cwd=tmp_path,
        env=environment(), text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )  # fmt: skip
    try:
        assert process.stderr is not None
        told = (re.search(r"the page is at (http://\S+)", line) for line in process.stderr)
        url = next(found[1] for found in told if found)
        with pytest.raises(HTTPError, match="401"):
            urlopen(url.partition("?")[0])
        process.send_signal(signal.SIGINT)
    finally:
        process.communicate(timeout=120)
    with pytest.raises(URLError, match="refused"):
        urlopen(url)
    assert process.returncode == -signal.SIGINT


def test_what_watch_refuses_is_told_and_the_script_runs_on(tmp_path: Path) -> None:
    done = vitals_run("--guard", "pray", script("trials.py"), cwd=tmp_path, TORCHVITALS_STRICT="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 240
    assert "got 'pray'; the script runs on, unwatched" in done.stderr
    assert not (tmp_path / "runs").exists()
