"""The top level is small, lazy and pinned."""

from __future__ import annotations

import re

import pytest

import torchvitals

from .house import ROOT, WITHOUT_TORCH, run_python

NAMES = [
    "Guard",
    "History",
    "Key",
    "ModuleMonitor",
    "Monitor",
    "MonitorMixin",
    "RefinedCoordinateCheck",
    "VitalsError",
    "__version__",
    "load_metrics",
    "monitor_scaled_dot_product_attention",
    "open_run",
    "watch",
]


def test_public_names_are_exactly_these() -> None:
    assert sorted(torchvitals.__all__) == NAMES
    assert dir(torchvitals) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_public_name_resolves(name: str) -> None:
    assert getattr(torchvitals, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wacth'"):
        _ = torchvitals.wacth


def test_importing_torchvitals_does_not_import_torch() -> None:
    done = run_python("import sys, torchvitals; assert 'torch' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_changelog_has_an_entry_for_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(torchvitals.__version__)}\]", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["watch", "Monitor"])
def test_without_torch_the_error_says_what_to_install(name: str) -> None:
    code = f"""
import torchvitals
from torchvitals.record import MissingExtra
try:
    torchvitals.{name}
except MissingExtra as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    done = run_python(WITHOUT_TORCH + code)
    assert done.returncode == 0, done.stderr
    assert f"torchvitals.{name}" in done.stdout
    assert "pip install torch" in done.stdout
