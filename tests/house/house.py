"""Where things stand in the repository, for the tests of the house itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "torchvitals"

LIVE = frozenset({"stats", "probes", "monitor", "guard", "coordcheck", "integrations", "launch"})
"""The rooms that import torch. All others must work where it is not installed."""

TRAINS = frozenset({"torchvitals.cli.demo_training"})
"""Scripts in rooms of the desk half: torch at their top, imported only when they are run."""

EITHER = frozenset({"testing"})
"""Rooms with parts of both halves."""


def rooms() -> set[str]:
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def modules(room: str) -> list[str]:
    """Every module of a room, dotted."""
    return sorted(
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        for path in (PACKAGE / room).rglob("*.py")
    )


def run_python(
    code: str, *options: str, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )


def run_elsewhere(code: str, folder: Path, *, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code with the torchvitals that lies in `folder`, not the editable install.

    The editable install hangs on a .pth file, which only `site` reads: without it (-S) the path
    alone decides.
    """
    packages = Path(pytest.__file__).parents[1]
    return run_python(code, "-S", env={"PYTHONPATH": f"{folder}{os.pathsep}{packages}"}, cwd=cwd)


WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
"""
"""Code that makes a process believe torch is not installed."""
