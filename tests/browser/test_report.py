"""`vitals report`: one file, opened as a file, with the network switched off."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect

from tests.browser.conftest import _train
from tests.browser.pages import QUIET, WAIT
from tests.browser.training import FAULTY, MARKUP
from torchvitals.dashboard.report import answers
from torchvitals.store import open_run

VIEWS = ["Findings", "Overview", "Layers", "Depth", "Updates", "Distributions", "Attention",
         "Series"]  # fmt: skip


@pytest.fixture(scope="module")
def file(folder: Path, built: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the run with the frozen layer."""
    path = tmp_path_factory.mktemp("reports") / "report.html"
    code = "from torchvitals.cli.main import main; main()"
    given = ["report", str(folder / "gpt-frozen"), "-o", str(path)]
    subprocess.run([sys.executable, "-c", code, *given], check=True)
    return path


@pytest.fixture
def page(file: Path, browser: Browser) -> Iterator[Page]:
    """The report in a window without a network; it asks for nothing, and nothing goes wrong."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    page = context.new_page()
    page.set_default_timeout(WAIT)
    wrong: list[str] = []

    def asked(request: Request) -> None:
        if not request.url.startswith((file.as_uri(), "data:", "blob:", "about:")):
            wrong.append(request.url)

    page.on("request", asked)
    page.on("console", lambda told: told.type in ("error", "warning") and wrong.append(told.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert not wrong, wrong


def quiet(page: Page) -> None:
    expect(page.locator(".view, .state").first).to_be_visible()
    end = time.monotonic() + WAIT / 1000
    while not page.evaluate(QUIET):
        assert time.monotonic() < end, "still loading"
        page.wait_for_timeout(50)
    assert page.locator(".problem").count() == 0


def test_every_view_is_drawn(page: Page) -> None:
    for view in VIEWS:
        page.get_by_role("link", name=view).first.click()
        expect(page).to_have_url(re.compile(f"#/{view.lower()}"))
        quiet(page)
        # The view before may have been what was quiet.
        expect(page.locator("canvas, .profile svg").first).to_be_attached()
    assert page.get_by_role("link", name="Runs").count() == 0


def test_a_finding_has_its_evidence(page: Page) -> None:
    finding = page.get_by_role("article", name="Frozen layer")
    expect(finding).to_contain_text("the parameter group has lr 0")
    chart = finding.get_by_role("img", name=re.compile(rf"update.{FAULTY}.weight.ratio.*limit"))
    expect(chart.locator("canvas")).to_be_visible()
    finding.get_by_role("button", name=re.compile(re.escape(f"{FAULTY}.bias"))).click()
    expect(page.get_by_role("dialog")).to_contain_text(f"{FAULTY}.bias")
    quiet(page)


def test_the_profile_follows_its_slider(page: Page) -> None:
    page.get_by_role("link", name="Depth").click()
    profile = page.get_by_role("group", name=re.compile("over depth"))
    page.get_by_label("Step", exact=True).fill("21")
    expect(profile).to_have_attribute("aria-label", re.compile("step 20$"))


def test_zooming_stays_inside_the_file(page: Page) -> None:
    page.get_by_role("link", name="Overview").click()
    quiet(page)
    box = page.locator(".chart .u-over").first.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=5)
    page.mouse.up()
    expect(page.get_by_role("button", name="Show all steps").first).to_be_visible()
    quiet(page)


def test_names_are_text_never_markup(page: Page) -> None:
    page.get_by_role("link", name="Series").click()
    page.get_by_label("Search").fill("onerror")
    expect(page.get_by_role("button", name=MARKUP, exact=True)).to_be_visible()
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()


def test_numbers_are_those_of_the_run(folder: Path, page: Page) -> None:
    with open_run(folder / "gpt-frozen") as history:
        _, values = history.series("loss")
        assert "matrix/update/ratio" in answers(history)
    page.get_by_role("link", name="Overview").click()
    loss = page.locator(".facts dd").first
    expect(loss).not_to_have_text("–")  # a dash stands there until the series is read
    assert float(loss.inner_text()) == pytest.approx(float(values[-1]), rel=1e-3)


def test_a_hostile_name_of_a_run_is_text(tmp_path: Path, built: None, browser: Browser) -> None:
    name = "<img src=x onerror=document.title='owned'>"
    assert _train(tmp_path / name, "--steps", "4").wait(300) == 0
    code = "from torchvitals.cli.main import main; main()"
    subprocess.run(
        [sys.executable, "-c", code, "report", str(tmp_path / name), "-o", "r.html"],
        check=True,
        cwd=tmp_path,
    )
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((tmp_path / "r.html").as_uri())
    expect(page.locator(".head .run-name")).to_have_text(name)
    assert page.title().startswith("<img")
    assert page.locator("img").count() == 0
    context.close()
