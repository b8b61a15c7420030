"""Every example that calls torchvitals runs as a user would run it.

The others know nothing of it: tests/launch/test_examples.py runs them, watched and unwatched.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .house import ROOT

EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if "torchvitals" in path.read_text()
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        env={**os.environ, "TORCHVITALS_STRICT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
