"""Settings for every test, made before torch is imported."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# In training the monitor never raises into the user's loop; in tests it must.
os.environ["TORCHVITALS_STRICT"] = "1"

# The Triton kernel runs on CPU tensors in Triton's interpreter; asked for when triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

if "PYTEST_XDIST_WORKER" in os.environ:
    # The workers share the cores: one thread each, unless a test asks for more.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# A busy machine is not a failure: how long things take is measured in bench/.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, for what writes `runs/` by default."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def no_hook_stays() -> Iterator[None]:
    """A test that leaves a hook for all modules behind would change the tests after it."""
    yield
    if "torch" in sys.modules:
        from torch.nn.modules import module

        if module._has_any_global_hook():  # type: ignore[no-untyped-call]
            gc.collect()  # a monitor that a test dropped takes its hooks with it
            assert not module._has_any_global_hook()  # type: ignore[no-untyped-call]
