"""Every example that calls torchvitals runs as a user would run it.

The others know nothing of it: tests/launch/test_examples.py runs them, watched and unwatched.
"""

from pathlib import Path

import pytest

from tests import warm

from .house import ROOT

EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if "torchvitals" in path.read_text()
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    done = warm.run([str(path)], cwd=tmp_path, strict=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
