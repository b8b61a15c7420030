"""Nothing there, not there yet, does not work: what the page says then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.conftest import _train
from tests.browser.pages import Server, Visit


@pytest.fixture
def empty(tmp_path: Path, built: None) -> Iterator[Server]:
    """A server of a folder without runs."""
    (tmp_path / "runs").mkdir()
    server = Server(tmp_path / "runs")
    server.start()
    yield server
    server.stop()


def test_an_empty_folder_says_how_to_begin_and_a_run_appears(
    empty: Server, browser: Browser, tmp_path: Path
) -> None:
    visit = Visit(browser, empty)
    page = visit.page
    expect(page.locator("main")).to_contain_text("No runs in")
    expect(page.locator("main")).to_contain_text("torchvitals.watch(")
    assert _train(tmp_path / "runs" / "first", "--steps", "6").wait(300) == 0
    expect(page.locator(".run-choice")).to_contain_text("first")
    expect(page.locator(".view-title")).to_contain_text("in first")
    visit.end()


def test_a_broken_run_says_what_is_wrong(visit: Visit) -> None:
    visit.allowed = ("422",)
    visit.go("findings", "torn")
    expect(visit.page.get_by_role("alert")).to_contain_text(re.compile("run.vitals|damaged|no run"))
    # The others are still there.
    visit.page.get_by_role("link", name="Runs").click()
    expect(visit.page.get_by_role("row").filter(has_text="gpt-hot")).to_be_visible()


def test_what_is_slow_is_announced_and_what_fails_is_said(visit: Visit) -> None:
    visit.allowed = ("500",)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    visit.page.goto("about:blank")  # what is open now asks for its own run
    visit.page.route(re.compile("/matrix"), hold)
    run = visit.server.id("gpt-hot")
    visit.page.goto(f"{visit.server.url}/#/layers?runs={run}")
    loading = visit.page.get_by_role("status", name="Loading the heatmap")
    expect(loading).to_be_visible()
    while not held:
        visit.page.wait_for_timeout(50)
    held[0].fulfill(status=500, json={"status": 500, "error": "the disk is on fire"})
    expect(visit.page.get_by_role("alert")).to_contain_text("the disk is on fire")
    expect(loading).to_have_count(0)


def test_a_run_without_findings_says_so(visit: Visit) -> None:
    visit.page.route(
        re.compile("/findings"),
        lambda route: route.fulfill(
            json={"run": "", "version": "x", "source": "stored", "findings": []}
        ),
    )
    visit.go("findings", "gpt-hot")
    expect(visit.page.locator("main")).to_contain_text("Nothing wrong")
    expect(visit.page.locator("main")).to_contain_text("All checks passed so far")


@pytest.mark.parametrize(("severity", "title"), [
    ("warning", "1 thing wrong in gpt-frozen"), ("info", "Nothing wrong in gpt-frozen, 1 note"),
])  # fmt: skip
def test_a_note_is_nothing_wrong(visit: Visit, severity: str, title: str) -> None:
    answer = visit.server.ask(f"runs/{visit.server.id('gpt-frozen')}/findings")
    answer["findings"] = [{**answer["findings"][0], "severity": severity}]
    visit.page.route(re.compile("/findings"), lambda route: route.fulfill(json=answer))
    visit.go("findings", "gpt-frozen")
    expect(visit.page.get_by_role("heading", level=1)).to_have_text(title)


def test_while_a_run_is_diagnosed_its_curves_are_there(visit: Visit) -> None:
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    visit.page.goto("about:blank")  # what is open now asks for its own run
    visit.page.route(re.compile("/findings"), hold)
    run = visit.server.id("gpt-hot")
    visit.page.goto(f"{visit.server.url}/#/findings?runs={run}")
    expect(visit.page.locator(".view-title")).to_contain_text("Looking for what is wrong")
    expect(visit.page.get_by_role("img", name=re.compile("^loss"))).to_be_visible()
    held[0].continue_()
    expect(visit.page.get_by_role("article", name="LR too high")).to_be_visible()


def test_a_statistic_that_was_not_watched(visit: Visit) -> None:
    visit.go("series", "gpt-hot", search="no_such_series")
    expect(visit.page.locator("main")).to_contain_text("No series matches")
    visit.go("layers", "gpt-hot", filter="no_such_layer")
    expect(visit.page.locator("main")).to_contain_text("No layer matches")
