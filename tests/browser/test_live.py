"""The page follows a training that runs, and outlives its server."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from tests.browser.pages import Visit


def step_of(visit: Visit) -> int:
    text = visit.page.locator(".head-facts .figure").inner_text()
    return int(re.findall(r"step ([\d\u202f]+)", text)[0].replace("\u202f", ""))


def wait_for_step(visit: Visit, after: int) -> None:
    # The page's policy forbids the eval that wait_for_function is made of.
    end = time.monotonic() + 20
    while step_of(visit) <= after:
        assert time.monotonic() < end, f"still at step {after}"
        visit.page.wait_for_timeout(100)


@pytest.fixture
def watched(visit: Visit) -> Visit:
    """The overview of the run that goes on, with a few steps in it."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        runs = {run["name"]: run["last_step"] for run in visit.server.ask("runs")["runs"]}
        if (runs.get("gpt-live") or 0) > 4:
            break
        time.sleep(0.2)
    visit.go("overview", "gpt-live")
    return visit


def test_new_steps_appear_without_a_reload(watched: Visit) -> None:
    page = watched.page
    page.evaluate("window.stillThis = true")
    expect(page.locator(".live")).to_be_visible()
    loss = page.get_by_role("img", name=re.compile("^Loss"))
    spoken = loss.get_attribute("aria-label")
    wait_for_step(watched, step_of(watched))
    expect(loss).not_to_have_attribute("aria-label", spoken or "")
    page.get_by_role("link", name="Layers").click()
    watched.quiet()
    note = page.locator(".card-note").first
    drawn = note.inner_text()
    expect(note).not_to_have_text(drawn)
    assert page.evaluate("window.stillThis")


def test_only_what_is_seen_is_asked_for(watched: Visit) -> None:
    page = watched.page
    page.set_viewport_size({"width": 1280, "height": 360})
    page.wait_for_timeout(500)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    wait_for_step(watched, step_of(watched) + 4)
    assert any("key=loss" in url for url in asked)
    # Far below the fold.
    assert not any("onerror" in url for url in asked)


def test_the_page_survives_a_restart_of_its_server(watched: Visit) -> None:
    page = watched.page
    watched.allowed = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED", "ERR_CONNECTION_RESET",
                       "ERR_EMPTY_RESPONSE", "ERR_SOCKET")  # fmt: skip
    page.evaluate("window.stillThis = true")
    before = step_of(watched)
    banner = page.get_by_role("status").filter(has_text="Reconnecting")
    watched.server.stop()
    try:
        expect(banner).to_be_visible()
        # What was drawn stays.
        expect(page.get_by_role("img", name=re.compile("^Loss"))).to_be_visible()
    finally:
        watched.server.start()
    expect(banner).to_have_count(0)
    wait_for_step(watched, before)
    assert page.evaluate("window.stillThis")


def test_a_wrong_token_is_said(watched: Visit) -> None:
    watched.allowed = ("401",)
    watched.context.clear_cookies()
    watched.page.reload()
    expect(watched.page.locator("body")).to_contain_text("vitals ui")
