"""The script's process is its own: arguments, stdin, exit code, tracebacks, signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.scripted import VITALS, both, check_health, environment, script
from torchvitals.store.history import open_run


def vitals_run(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(VITALS), "run", *arguments], cwd=cwd, env=environment(**env), text=True,
        capture_output=True, check=False, timeout=240,
    )  # fmt: skip


def test_arguments_stdin_exit_code_and_workers(tmp_path: Path) -> None:
    """With spawned loader workers, which import the script again to find its classes."""
    pair = both(
        tmp_path, script("workers.py"), "--run", "0.1", "--code", "3", stdin="seven",
        VITALS_EVERY="2", options=(),
    )  # fmt: skip
    assert pair.plain.returncode == pair.watched.returncode == 3
    assert pair.watched.stdout == pair.plain.stdout
    assert "True ['--run', '0.1', '--code', '3'] __main__" in pair.plain.stdout
    pair.check_losses()
    assert pair.history.steps("update").tolist() == [1, *range(2, 81, 2)]
    assert pair.history.series("epoch/run/number").steps.tolist() == list(range(10, 81, 10))
    check_health(tmp_path / "run")


def test_an_exception(tmp_path: Path) -> None:
    pair = both(tmp_path, script("raises.py"))
    assert pair.plain.returncode == pair.watched.returncode == 1
    assert pair.watched.stdout == pair.plain.stdout
    # The traceback is the script's, to the letter: no frame of ours in it.
    assert "sample 20 can't be read" in pair.plain.stderr
    assert pair.watched.stderr.startswith(pair.plain.stderr)
    pair.check_losses()
    assert pair.history.status == "failed"
    assert pair.history.events("error")[0].text == "ValueError: sample 20 can't be read"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    ends = {}
    commands = {
        "plain": [sys.executable, script("endless.py")],
        "watched": [str(VITALS), "run", "--run", "run", script("endless.py")],
    }
    for name, command in commands.items():
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A shell that runs the tests in the background has it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "going\n"
            process.send_signal(number)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
        ends[name] = (process.returncode, err)
    assert ends["watched"][0] == ends["plain"][0] == -number
    history = open_run(tmp_path / "run")
    if number == signal.SIGINT:
        assert "cleaned up\nTraceback" in ends["watched"][1]
        assert history.status == "failed"
        assert history.last_step >= 5
    else:  # the script has no handler: it ends on the spot, watched or not
        assert ends["watched"][1] == ends["plain"][1] == ""
        assert history.status == "died"


def test_what_can_not_be_watched_is_told_once_and_runs_on(tmp_path: Path) -> None:
    pair = both(tmp_path, script("bare.py"))
    assert pair.watched.returncode == 0
    assert pair.watched.stdout == pair.plain.stdout
    told = "torchvitals: the parameters of SGD are in no torch.nn.Module"
    assert pair.watched.stderr.count(told) == 1
    assert not (tmp_path / "run").exists()


def test_the_surroundings_are_as_without_us(tmp_path: Path) -> None:
    """Its own sitecustomize is loaded, and nothing of ours is in its environment or path."""
    (tmp_path / "sitecustomize.py").write_text("print('customized')\n")
    (tmp_path / "tell.py").write_text(
        "import os, sys\n"
        "print(sys.path, sys.argv, sys.orig_argv[1:], sorted(os.environ), sys.flags)\n"
        "print(os.environ.get('PYTHONPATH'), sys.modules['sitecustomize'].__file__)\n"
        "print('torch' in sys.modules, 'numpy' in sys.modules)\n"
    )
    found = []
    for command in ([sys.executable], [str(VITALS), "run", "--every", "3"]):
        done = subprocess.run(
            [*command, "tell.py", "-m", "x"], cwd=tmp_path, env=environment(PYTHONPATH="."),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(done.stdout)
    # The command itself is a Python program, and is customized, too.
    assert found[1] == "customized\n" + found[0]
    assert found[0].startswith("customized\n")
    assert "False False" in found[0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing.py"], "there is no script 'nothing.py' here"),
        (["book.ipynb"], "is a notebook"),
        (["--every", "0", "x.py"], "0 is not in the range"),
        (["--run", "taken", "x.py"], "taken is a run already"),
    ],
)
def test_wrong_calls_are_told_before_anything_runs(
    tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "x.py").write_text("print('ran')\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "run.vitals").touch()
    done = vitals_run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in re.sub(r"\s+", " ", done.stderr)
