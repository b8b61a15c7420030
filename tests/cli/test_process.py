"""The installed command: pipes, terminals, exit codes, and a machine without torch."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.processes import VITALS, environment, vitals, vitals_without_torch
from tests.views.made_runs import make_run

IMPORTS = """
import sys
from click.testing import CliRunner
from torchvitals.cli.main import vitals
assert CliRunner().invoke(vitals, sys.argv[1:]).exit_code == 0
print(*sorted({"torch", "numpy", "rich", "sqlite3"} & sys.modules.keys()))
"""


def imported_by(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["show", "--help"], ["status", "-h"]]
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    assert imported_by(*arguments) == []


def test_reading_a_run_does_not_load_torch(runs: Path) -> None:
    for arguments in (
        ["ls"],
        ["status", "made"],
        ["show", "made"],
        ["verify", "made"],
        ["export", "made", "--to=csv"],
    ):
        found = imported_by(*arguments)
        assert "numpy" in found
        assert "torch" not in found
    assert runs.exists()


def test_exit_codes(runs: Path) -> None:
    assert vitals("--version").returncode == 0
    assert vitals("ls").returncode == 0
    assert vitals("show", "nothing").returncode == 2
    assert vitals("show").returncode == 2
    assert vitals("nothing").returncode == 2
    (runs / "made" / "run.vitals").write_bytes(b"x" * 5000)
    done = vitals("verify", "made")
    assert done.returncode == 1
    assert done.stderr == ""


def test_user_errors_are_one_line_without_a_traceback(runs: Path) -> None:
    (runs / "made" / "run.vitals").write_bytes(b"x" * 5000)
    for arguments in (["show", "maed"], ["show", "made"], ["export", "maed", "--to", "csv"]):
        done = vitals(*arguments)
        assert done.stdout == ""
        assert done.stderr.startswith("vitals: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", ["export big --to csv", "export big --to jsonl", "show big --json"]
)
def test_a_pipe_that_closes_ends_quietly(in_tmp: Path, command: str) -> None:
    make_run(in_tmp / "runs" / "big", steps=range(1, 400))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {VITALS} {command} | head -n 2"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert done.stdout.count("\n") == 2
    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("command", ["show made", "status made", "ls", "verify made"])
def test_a_pipe_that_nobody_reads_ends_quietly(command: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {VITALS} {command} | true"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.usefixtures("runs")
def test_a_pipe_gets_no_escape_codes_and_a_hundred_columns() -> None:
    for arguments in (["show", "made"], ["status", "made"], ["ls"]):
        done = vitals(*arguments)
        assert "\x1b" not in done.stdout
        assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.usefixtures("runs")
def test_a_stream_that_knows_no_blocks_does_not_fail() -> None:
    done = vitals("show", "made", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "frozen" in done.stdout


def at_terminal(*arguments: str, columns: int, **env: str) -> str:
    """What a terminal of that width gets to see."""
    main, other = pty.openpty()
    process = subprocess.Popen(
        ["bash", "-c", f"stty cols {columns}; exec {VITALS} {' '.join(arguments)}"],
        stdin=other,
        stdout=other,
        stderr=other,
        env=environment(TERM="xterm-256color", **env),
    )
    os.close(other)
    seen = b""
    while True:
        try:
            part = os.read(main, 65536)
        except OSError:  # the terminal closes with its last process
            break
        if not part:
            break
        seen += part
    os.close(main)
    assert process.wait(60) == 0
    return seen.decode()


@pytest.mark.usefixtures("runs")
def test_a_terminal_gets_colour_and_its_own_width() -> None:
    text = at_terminal("show", "made", columns=72)
    assert "\x1b[33m" in text
    assert "frozen" in text
    lines = re.sub(r"\x1b\[[\d;]*m", "", text).splitlines()
    assert 60 < max(map(len, lines)) <= 72
    plain = at_terminal("show", "made", columns=72, NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "frozen" in plain


@pytest.mark.usefixtures("runs")
class TestWithoutTorch:
    def test_the_desk_half_works(self) -> None:
        for arguments in (["ls"], ["show", "made"], ["verify", "made"], ["--help"]):
            done = vitals_without_torch(*arguments)
            assert done.returncode == 0, done.stderr
        done = vitals_without_torch("export", "made", "--to", "csv", "--kind", "scalar")
        assert done.stdout.count("\n") == 41

    def test_doctor_says_so_and_is_content(self) -> None:
        done = vitals_without_torch("doctor")
        assert done.returncode == 0, done.stderr
        assert "not installed: runs can be read, shown and exported, not recorded" in done.stdout
        assert "pip install torch" in done.stdout
        found = json.loads(vitals_without_torch("doctor", "--json").stdout)
        assert found["torch"] is None
        assert found["overhead"] is None

    def test_the_demo_says_what_to_install(self) -> None:
        done = vitals_without_torch("demo", "--fast")
        assert done.returncode == 1
        assert "pip install torch" in done.stderr
        assert "Traceback" not in done.stderr
