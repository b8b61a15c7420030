"""The two commands a newcomer types: what they offer, and what they say when they can't."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .house import ROOT


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # A make around this test must not hand its own options down.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


def test_help_is_the_default_and_lists_the_targets() -> None:
    done = make()
    assert done.returncode == 0, done.stderr
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert listed == [
        "help", "demo", "page", "test", "test-distributed", "lint", "bench", "bench-faults",
        "docs", "clean",
    ]  # fmt: skip


@pytest.mark.parametrize("script", ["echo Python 3.9.1; exit 1", None])
def test_a_python_too_old_or_absent_is_named(tmp_path: Path, script: str | None) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        (tmp_path / name).touch()
    (tmp_path / "src" / "torchvitals").mkdir(parents=True)
    (tmp_path / "src" / "torchvitals" / "__init__.py").touch()
    python = tmp_path / "python-of-the-test"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    done = make("demo", f"PYTHON={python}", cwd=tmp_path)
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert ("Python 3.9.1" if script else "not there") in done.stderr
    assert "make PYTHON=/path/to/python3.12" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_ci_runs_what_a_contributor_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"
