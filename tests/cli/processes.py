"""The command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VITALS = Path(sys.executable).parent / "vitals"

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, NoTorch())
from torchvitals.cli.main import main
sys.argv[0] = "vitals"
main()
"""


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "PYTEST_CURRENT_TEST")
    }
    return {**kept, "OMP_NUM_THREADS": "1", **more}


def vitals(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(VITALS), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(**env),
        timeout=600,
    )


def vitals_without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=600,
    )
