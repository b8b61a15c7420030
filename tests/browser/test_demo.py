"""The two runs of `vitals demo` over each other, as the address it prints shows them.

VITALS_SCREENSHOTS=1 trains as long as the demo does, for the picture in the README.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import SCREENSHOTS
from tests.browser.pages import Server, Visit


@pytest.fixture(scope="module")
def demo(
    browser: Browser, built: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Visit]:
    runs = tmp_path_factory.mktemp("demo") / "runs"
    code = "from torchvitals.cli.main import main; main()"
    fast = [] if SCREENSHOTS else ["--fast", "--steps", "40"]
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--run", str(runs / "demo"), "--json", *fast],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ if SCREENSHOTS else {**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["difference"]["before"]["findings"] == ["frozen_layer"]
    server = Server(runs)
    server.start()
    visit = Visit(browser, server)
    yield visit
    visit.end()
    server.stop()


def test_both_runs_are_drawn(demo: Visit, pictures: Path) -> None:
    demo.go("overview", "demo,demo/fixed")
    page = demo.page
    card = page.locator(".card", has_text="Learning rate").first
    for name in ("demo", "demo/fixed"):
        expect(card.get_by_text(name, exact=True).first).to_be_visible()
    page.wait_for_timeout(500)
    clip = {"x": 0, "y": 0, "width": 1280, "height": 645}
    shown = page.screenshot(path=pictures / "page-demo.png", clip=clip)
    assert len(shown) > 25_000
