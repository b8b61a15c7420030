"""The import contracts hold, cover every room, and would notice a breach."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from .house import (
    EITHER,
    LIVE,
    ROOT,
    TRAINS,
    WITHOUT_TORCH,
    modules,
    rooms,
    run_elsewhere,
    run_python,
)

LINT = """
import sys
from importlinter.cli import lint_imports
sys.exit(lint_imports(no_cache=True, no_logo=True))
"""

DESK = sorted(rooms() - LIVE - EITHER)


@pytest.mark.parametrize("room", DESK)
def test_desk_room_imports_without_torch(room: str) -> None:
    """Every module of it: the linter does not see imports inside functions of others."""
    names = [name for name in modules(room) if not name.endswith("__main__")]
    names = [name for name in names if name not in TRAINS]
    done = run_python(f"{WITHOUT_TORCH}\nfor name in {names}: __import__(name)\n")
    assert done.returncode == 0, done.stderr


def test_the_block_on_torch_blocks() -> None:
    done = run_python(WITHOUT_TORCH + "\nimport torchvitals.stats.backend\n")
    assert done.returncode != 0
    assert "No module named 'torch'" in done.stderr


def contract(name: str) -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    found: dict[str, Any] = next(c for c in settings["contracts"] if c["id"] == name)
    return found


def test_desk_contract_names_every_room() -> None:
    desk = contract("desk")
    assert sorted(desk["source_modules"]) == [f"torchvitals.{room}" for room in DESK]
    live = [f"torchvitals.{room}" for room in rooms() & LIVE]
    assert sorted(desk["forbidden_modules"]) == ["torch", *sorted(live)]


@pytest.mark.parametrize(
    ("planted", "line", "breach"),
    [
        ("record/key.py", "import torch", "record is not allowed to import torch"),
        ("store/__init__.py", "import torch.nn", "store is not allowed to import torch"),
        (
            "record/event.py",
            "import torchvitals.store",
            "record is not allowed to import torchvitals.store",
        ),
        (
            "stats/sums.py",
            "import torchvitals.store",
            "stats is not allowed to import torchvitals.store",
        ),
        ("attic/__init__.py", "", "attic"),
        (None, "", None),
    ],
)
def test_contracts_notice_a_breach(
    tmp_path: Path, planted: str | None, line: str, breach: str | None
) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    if planted is not None:
        path = tmp_path / "src" / "torchvitals" / planted
        path.parent.mkdir(exist_ok=True)
        before = path.read_text() if path.exists() else ""
        path.write_text(before + f"\n{line}\n")
    done = run_elsewhere(LINT, tmp_path / "src", cwd=tmp_path)
    output = done.stdout + done.stderr
    assert done.returncode == (0 if breach is None else 1), output
    assert breach is None or breach in " ".join(output.split())
