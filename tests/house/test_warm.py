"""A process that has torch loaded already is otherwise like any other."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

CODE = """
import atexit, os, sys, warnings
atexit.register(print, "at the end")
print(__name__, sys.argv[1:], os.getcwd(), sorted(os.environ), sys.stdin.read())
print("err", file=sys.stderr)
sys.exit(3)
"""


def test_it_ends_and_speaks_as_one_that_was_started_cold(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CODE)
    here = tmp_path / "here"
    here.mkdir()
    env = {"PATH": "/bin", "A": "1", "LC_CTYPE": "C.UTF-8"}
    for arguments in (["-c", CODE, "x", "-y"], [str(script), "x"]):
        cold = subprocess.run(
            [sys.executable, *arguments], cwd=here, env=env, input="typed", text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        found = warm.run(arguments, cwd=here, env=env, stdin="typed")
        assert found.stdout == cold.stdout
        assert found.stderr == cold.stderr
        assert found.returncode == cold.returncode == 3


def test_errors_warnings_and_what_hangs(tmp_path: Path) -> None:
    raised = warm.run(["-c", "raise ValueError('bad')"], cwd=tmp_path)
    assert raised.returncode == 1
    assert raised.stderr.endswith("ValueError: bad\n")
    warning = ["-c", "import warnings; warnings.warn('careful')"]
    assert warm.run(warning, cwd=tmp_path).returncode == 0
    assert "UserWarning: careful" in warm.run(warning, cwd=tmp_path, strict=True).stderr
    assert warm.run(warning, cwd=tmp_path, strict=True).returncode == 1
    hangs = warm.run(["-c", "while True: pass"], cwd=tmp_path, timeout=1)
    assert hangs.returncode == -signal.SIGALRM


@pytest.mark.parametrize("turn", [1, 2])
def test_nothing_of_one_run_reaches_the_next(tmp_path: Path, turn: int) -> None:
    code = "import torch; print(getattr(torch, 'left', 'nothing')); torch.left = 'something'"
    assert warm.run(["-c", code], cwd=tmp_path).stdout == "nothing\n", turn
