"""The example packages, installed for real into a folder of their own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchvitals.record import plugins

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages: built and installed by pip from their pyproject.toml."""
    folder = tmp_path_factory.mktemp("site")
    sources = tmp_path_factory.mktemp("sources") / "plugins"
    shutil.copytree(EXAMPLES, sources)  # a build leaves things behind
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation",
            "--no-index", "--disable-pip-version-check", "--target", str(folder),
            *(str(path) for path in sorted(sources.iterdir())),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """They are to be found."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(plugins, "_told", set())
    yield
    for name in [name for name in sys.modules if name.startswith("vitals_")]:
        del sys.modules[name]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution all of whose sinks and probes have something wrong with them."""
    folder = tmp_path / "broken"
    info = folder / "vitals_broken-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vitals-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[torchvitals.sinks]\n"
        "absent = vitals_nowhere:Sink\n"
        "raises = vitals_broken:Raises\n"
        "mute = vitals_broken:Mute\n"
        "[torchvitals.probes]\n"
        "absent = vitals_nowhere\n"
        "raises = vitals_broken:Raises\n"
        "mute = vitals_broken:Mute\n"
        "late = vitals_broken:Late\n"
        "midway = vitals_broken:Midway\n"
    )
    (folder / "vitals_broken.py").write_text(
        "class Raises:\n    def __init__(self):\n        raise OSError('no licence')\n"
        "class Mute:\n    pass\n"
        "class Late:\n    def open(self, models, optimizers):\n        raise OSError('no device')\n"
        "    def measure(self, step):\n        return {}\n"
        "class Midway:\n    def measure(self, step):\n        return {'not a key': 1.0}\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_told", set())
    yield
    sys.modules.pop("vitals_broken", None)


@pytest.fixture
def broken_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another one, of rules: each run of the tests that use it is diagnosed with them."""
    folder = tmp_path / "broken_rules"
    info = folder / "vitals_broken_rules-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vitals-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[torchvitals.rules]\n"
        "absent = vitals_nowhere\n"
        "mute = vitals_broken_rules:Mute\n"
        "taken = vitals_broken_rules:Taken\n"
        "wrong = vitals_broken_rules:Wrong\n"
    )
    (folder / "vitals_broken_rules.py").write_text(
        "class Mute:\n    pass\n"
        "class Taken:\n    NAME = 'plateau'\n    check = None\n"
        "class Wrong:\n    NAME = 'wrong'\n"
        "    def check(run, thresholds):\n        return 'all is well'\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(plugins, "_told", set())
    yield
    sys.modules.pop("vitals_broken_rules", None)
