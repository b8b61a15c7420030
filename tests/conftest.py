"""Settings for every test, made before torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# In training the monitor never raises into the user's loop; in tests it must.
os.environ["TORCHVITALS_STRICT"] = "1"

if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores: one thread each, unless a test asks for more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, for what writes `runs/` by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
