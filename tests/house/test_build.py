"""The wheel: with the kernel where a compiler is in reach, pure where none is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from .house import ROOT, run_elsewhere

KERNEL = "torchvitals/stats/native/_kernel.so"


def tools_without_compiler(folder: Path) -> str:
    """A PATH that holds the environment's own tools and the few a build script may ask for."""
    folder.mkdir()
    for name in ("python3", "sh", "bash", "uname", "sed"):
        found = shutil.which(name)
        if found is not None:
            (folder / name).symlink_to(found)
    return os.pathsep.join([str(Path(sys.executable).parent), str(folder)])


def build(folder: Path, env: dict[str, str]) -> Path:
    """Build the committed tree (with local changes) in a copy; the wheel."""
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        source = ROOT / name
        if source.is_file():
            target = folder / "tree" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--quiet",
         "--wheel-dir", str(folder / "dist"), str(folder / "tree")],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def contents(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def backend_of(wheel: Path, folder: Path) -> str:
    """The backend that an installation of this wheel chooses."""
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--target", str(folder / "site"), str(wheel)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    code = """
import torch, torchvitals
from torchvitals.stats.backend import choose_backend
backend = choose_backend()
sums = backend.measure([torch.tensor([3.0, 4.0])]).host().sums
assert sums[0, :3].tolist() == [2, 7, 25], sums
print(torchvitals.__file__, backend.name)
"""
    done = run_elsewhere(code, folder / "site", cwd=folder)
    assert done.returncode == 0, done.stderr
    place, name = done.stdout.split()
    assert Path(place).is_relative_to(folder / "site"), "the editable install was imported instead"
    return name


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler here")
def test_wheel_has_the_kernel_and_fits_every_python_3(tmp_path: Path) -> None:
    wheel = build(tmp_path, {"VITALS_PAGE": "1"})
    _, _, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none")
    assert platform != "any"
    names = contents(wheel)
    assert KERNEL in names
    assert "torchvitals/py.typed" in names
    assert "torchvitals/dashboard/static/index.html" in names
    assert [
        name for name in names if re.fullmatch(r"torchvitals/dashboard/static/assets/.*\.js", name)
    ]
    assert not [name for name in names if "node_modules" in name or name.startswith("web/")]
    assert not [name for name in names if name.endswith((".c", ".h"))]
    assert backend_of(wheel, tmp_path) == "native"


def test_without_a_compiler_the_wheel_is_pure_and_works(tmp_path: Path) -> None:
    path = tools_without_compiler(tmp_path / "bin")
    wheel = build(tmp_path, {"PATH": path, "CC": "/nonexistent", "VITALS_PAGE": "0"})
    assert wheel.stem.endswith("-py3-none-any")
    assert KERNEL not in contents(wheel)
    assert not [name for name in contents(wheel) if "static" in name]
    assert backend_of(wheel, tmp_path) == "torch"
