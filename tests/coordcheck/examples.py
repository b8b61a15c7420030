"""The scripts under examples/, imported."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from torchvitals.cli.coordcheck import _import_file

FOLDER = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    return _import_file(FOLDER / f"coordinate_check_{name}.py")
