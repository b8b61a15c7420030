"""Using the page: filter, pin, address, keys, themes, a phone."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import STATIC
from tests.browser.pages import Visit

VIEWS = ["findings", "overview", "layers", "depth", "updates", "distributions", "attention",
         "series", "runs"]  # fmt: skip


def test_series_are_filtered_by_regular_expression(visit: Visit) -> None:
    visit.go("series", "gpt-frozen")
    page = visit.page
    field = page.get_by_label("Search")
    field.fill(r"^update/blocks\.\d\.mlp\.up\.weight/ratio$")
    expect(page.get_by_role("status").filter(has_text="series")).to_contain_text(
        re.compile(r"^4 of")
    )
    visit.quiet()
    expect(page.locator(".chart")).to_have_count(4)
    field.fill("blocks.(")
    expect(page.get_by_role("alert")).to_contain_text("Invalid regular expression")


def test_pins_and_the_address_survive_a_reload(visit: Visit) -> None:
    visit.go("series", "gpt-frozen", search="^loss$")
    page = visit.page
    page.get_by_role("button", name="Pin loss").click()
    page.get_by_role("link", name="Overview").click()
    visit.quiet()
    pinned = page.get_by_role("region", name="Pinned")
    expect(pinned.locator(".chart")).to_have_count(1)
    page.get_by_role("link", name="Layers").click()
    page.get_by_label("What").select_option("activation")
    page.get_by_label("Statistic").select_option("std")
    page.get_by_label("Layers", exact=True).fill("mlp")
    visit.quiet()
    lines = page.get_by_role("treeitem").all_inner_texts()
    page.reload()
    visit.quiet()
    assert page.get_by_label("What").input_value() == "activation"
    assert page.get_by_label("Statistic").input_value() == "std"
    assert page.get_by_role("treeitem").all_inner_texts() == lines
    assert all("norm" not in line for line in lines)
    assert visit.settings["pins"] == "loss"


def test_zooming_asks_for_finer_steps_and_lives_in_the_address(visit: Visit) -> None:
    visit.go("overview", "gpt-frozen")
    page = visit.page
    plot = page.locator(".chart .u-over").first
    box = plot.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    with page.expect_request(lambda request: "start=" in request.url and "series" in request.url):
        page.mouse.move(box["x"] + box["width"] * 0.25, y)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=5)
        page.mouse.up()
    first, last = map(int, visit.settings["x"].split(":"))
    assert 0 < first < last
    page.keyboard.press("0")
    assert "x" not in visit.settings


def test_everything_works_from_the_keyboard(visit: Visit) -> None:
    visit.go("findings", "gpt-frozen")
    page = visit.page
    page.keyboard.press("3")
    visit.quiet()
    expect(page.get_by_role("link", name="Layers")).to_have_attribute("aria-current", "page")
    tree = page.get_by_role("treeitem")
    tree.first.focus()
    page.keyboard.press("ArrowDown")
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == tree.nth(1).text_content()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("^loss$")
    visit.quiet()
    expect(page.locator(".chart")).to_have_count(1)
    page.locator(".lines").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".lines .tip").first).to_contain_text("step")
    # The ring of the focus is seen.
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_keys_typed_before_the_search_field_is_there_are_not_lost(visit: Visit) -> None:
    visit.go("findings", "gpt-frozen")
    # All in one go: nothing is drawn in between.
    visit.page.evaluate(
        "[...'/^lo'].forEach(key => "
        "document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})))"
    )
    field = visit.page.get_by_label("Search")
    expect(field).to_be_focused()
    expect(field).to_have_value("^lo")
    visit.page.keyboard.type("ss$")
    expect(field).to_have_value("^loss$")
    expect(visit.page.locator(".chart")).to_have_count(1)


def test_dark_follows_the_system_and_the_button(visit: Visit) -> None:
    def ground() -> int:
        colour = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return int(re.findall(r"\d+", colour)[0])

    visit.go("overview", "gpt-frozen")
    assert ground() > 200
    visit.open_window(color_scheme="dark")
    visit.go("overview", "gpt-frozen")
    assert ground() < 60
    visit.page.get_by_role("button", name="Light theme").click()
    assert ground() > 200
    visit.page.reload()
    assert ground() > 200


@pytest.mark.parametrize("view", VIEWS)
def test_a_phone_is_wide_enough(visit: Visit, view: str) -> None:
    visit.open_window(size=(390, 844))
    visit.go(view, "gpt-frozen,gpt-hot")
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visit.page.locator(".problem").count() == 0


def test_every_control_has_a_name(visit: Visit) -> None:
    for view in VIEWS:
        visit.go(view, "gpt-frozen,gpt-hot")
        nameless = visit.page.evaluate(
            "[...document.querySelectorAll('button, a[href], input, select, canvas[role], "
            "svg[role]')].filter(e => !(e.ariaLabel || e.textContent.trim() || e.title || "
            "e.labels?.[0]?.textContent.trim())).map(e => e.outerHTML)"
        )
        assert nameless == [], view


CHARTS: dict[str, tuple[str, dict[str, str], str]] = {
    "lines": ("series", {"search": "^loss$"}, "loss"),
    "stacked": ("overview", {}, "Where-the-time-goes"),
    "heatmap": ("layers", {"kind": "gradient", "stat": "rms"}, "Gradient-rms"),
    "profile": ("depth", {"kind": "gradient", "stat": "rms"}, "Gradient-rms-over-depth"),
    "updates": ("updates", {}, "update-ratio"),
    "histogram": ("distributions", {"kind": "gradient", "site": "head.weight"},
                  "gradient-head.weight"),
    "heads": ("attention", {"stat": "entropy", "step": "40"}, "Entropy-of-each-head-step-40"),
}  # fmt: skip
"""View, its settings, and the name of the file."""


@pytest.mark.parametrize("chart", CHARTS)
def test_any_chart_is_saved_as_a_file(visit: Visit, tmp_path: Path, chart: str) -> None:
    view, settings, name = CHARTS[chart]
    visit.go(view, "gpt-frozen", **settings)
    page = visit.page
    cards = page.locator(".card")
    if chart == "stacked":
        cards = cards.filter(has_text="Where the time goes")
        cards.scroll_into_view_if_needed()
        visit.quiet()
    for kind in ("SVG", "PNG"):
        cards.get_by_role("button", name="Save as a file").first.click()
        with page.expect_download() as download:
            page.get_by_role("menuitem", name=kind).click()
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        assert path.name == f"{name}.{kind.lower()}"
        picture = visit.context.new_page()
        # A browser draws it: it is well formed and not blank.
        picture.goto("about:blank")
        media = "image/svg+xml" if kind == "SVG" else "image/png"
        data = base64.b64encode(path.read_bytes()).decode()
        colours = picture.evaluate(
            """async source => {
                const image = new Image();
                image.src = source;
                await image.decode();
                const canvas = document.createElement('canvas');
                [canvas.width, canvas.height] = [image.width, image.height];
                const context = canvas.getContext('2d');
                context.drawImage(image, 0, 0);
                const { data } = context.getImageData(0, 0, image.width, image.height);
                return new Set(new Uint32Array(data.buffer)).size;
            }""",
            f"data:{media};base64,{data}",
        )
        assert colours > 20
        picture.close()
    if chart in ("heatmap", "profile", "heads"):
        # Names of layers are in it.
        assert "attention" in (tmp_path / f"{name}.svg").read_text()


def test_the_page_is_small(built: None) -> None:
    files = [path.read_bytes() for path in STATIC.rglob("*") if path.is_file()]
    assert len(files) >= 3
    assert sum(len(gzip.compress(data)) for data in files) < 100_000
