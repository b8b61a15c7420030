"""Each view shows what the run holds."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.pages import Visit, number
from tests.browser.training import FAULTY, MARKUP

FROZEN = f"{FAULTY}.weight"


def test_a_finding_opens_its_evidence(visit: Visit) -> None:
    visit.go("findings", "gpt-frozen")
    page = visit.page
    (stored,) = [
        one
        for one in visit.server.ask(f"runs/{visit.server.id('gpt-frozen')}/findings")["findings"]
        if one["name"] == "frozen_layer"
    ]
    item = page.get_by_role("list", name="Findings").get_by_role("button", name="Frozen layer")
    expect(item).to_contain_text(FROZEN)
    item.click()
    finding = page.get_by_role("article", name="Frozen layer")
    for text in (stored["explanation"], stored["fix"], "the parameter group has lr 0", "90 %"):
        expect(finding).to_contain_text(text)
    # The series, with the limit and the step, is there as a chart.
    chart = finding.get_by_role("img", name=re.compile(rf"update.{FROZEN}.ratio.*limit 10⁻¹²"))
    expect(chart).to_be_visible()
    expect(chart.locator("canvas")).to_be_visible()
    # The layers involved open.
    finding.get_by_role("button", name=re.compile(re.escape(f"{FAULTY}.bias"))).click()
    expect(page.get_by_role("dialog")).to_contain_text(f"{FAULTY}.bias")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_what_follows_from_a_finding_stands_below_it(visit: Visit) -> None:
    visit.go("findings", "gpt-hot")
    finding = visit.page.get_by_role("article", name="LR too high")
    expect(finding).to_contain_text("The steps are too large for this model.")
    symptom = finding.get_by_role("button", name=re.compile("Attention logits"))
    expect(symptom).to_have_attribute("aria-expanded", "false")
    symptom.click()
    expect(symptom).to_have_attribute("aria-expanded", "true")
    chart = finding.get_by_role("img", name=re.compile("max_logit"))
    expect(chart.first).to_be_visible()


def test_the_heatmap_reads_out_and_opens(visit: Visit) -> None:
    visit.go("layers", "gpt-hot", kind="gradient", stat="rms")
    page = visit.page
    names = page.get_by_role("treeitem")
    row = names.all_inner_texts().index("tokens.weight")
    canvas = page.locator("canvas.heat-canvas")
    box = canvas.bounding_box()
    assert box is not None
    canvas.hover(position={"x": box["width"] / 2, "y": row * 18 + 9})
    tip = page.locator(".heat .tip")
    expect(tip).to_contain_text("tokens.weight")
    step = int(re.findall(r"step (\d+)", tip.inner_text())[0])
    shown = number(tip.locator(".tip-value").inner_text())
    stored = visit.server.ask(
        f"runs/{visit.server.id('gpt-hot')}/series", key="gradient/tokens.weight/rms"
    )["arrays"]
    true = dict(zip(stored["0.steps"], stored["0.last"], strict=True))[step]
    assert shown == pytest.approx(true, rel=1e-3)
    canvas.click(position={"x": box["width"] / 2, "y": row * 18 + 9})
    drawer = page.get_by_role("dialog", name="Series gradient/tokens.weight/rms")
    expect(drawer).to_be_visible()
    assert visit.settings["open"] == "gradient/tokens.weight/rms"


def test_modules_fold_and_unfold(visit: Visit) -> None:
    visit.go("layers", "gpt-hot", kind="update", stat="ratio")
    page = visit.page
    before = page.get_by_role("treeitem").count()
    page.get_by_role("treeitem", name="blocks", exact=False).first.click()
    assert page.get_by_role("treeitem").count() < before
    assert visit.settings["fold"] == "blocks"
    page.get_by_role("button", name="Unfold all layers").click()
    assert page.get_by_role("treeitem").count() > before


def test_the_profile_follows_its_slider(visit: Visit) -> None:
    visit.go("depth", "gpt-hot", kind="gradient", stat="rms")
    page = visit.page
    profile = page.get_by_role("group", name=re.compile("Gradient rms over depth"))
    last = visit.server.ask(f"runs/{visit.server.id('gpt-hot')}")["last_step"]
    expect(profile).to_have_attribute("aria-label", re.compile(f"step ({last}|{last - 1})$"))
    slider = page.get_by_label("Step", exact=True)
    slider.fill("21")
    expect(profile).to_have_attribute("aria-label", re.compile("step 20$"))
    page.get_by_role("button", name="Keep this step").click()
    slider.fill("41")
    expect(profile).to_have_attribute("aria-label", re.compile("step 40, step 20$"))
    assert visit.settings["keep"] == "21"


def test_update_ratios_name_who_is_outside(visit: Visit) -> None:
    visit.go("updates", "gpt-frozen")
    page = visit.page
    expect(page.get_by_role("img", name=re.compile("Update ratio of each layer"))).to_be_visible()
    line = page.get_by_role("row").filter(has_text=FROZEN)
    expect(line).to_contain_text("does not move at all")


@pytest.mark.parametrize("mode", ["heatmap", "ridge", "percentiles"])
def test_distributions(visit: Visit, mode: str) -> None:
    visit.go("distributions", "gpt-hot", kind="gradient", site="blocks.1.mlp.up.weight")
    page = visit.page
    page.get_by_role("button", name=mode).click()
    name = {"heatmap": "heat", "ridge": "ridge", "percentiles": "fan"}[mode]
    canvas = page.locator(f"canvas[data-mode={name}]").first
    expect(canvas).to_be_visible()
    page.wait_for_timeout(100)
    drawn = page.evaluate(
        "canvas => { const {width, height} = canvas; const pixels = new Uint32Array("
        "canvas.getContext('2d').getImageData(0, 0, width, height).data.buffer);"
        "return new Set(pixels).size }",
        canvas.element_handle(),
    )
    assert drawn > 10
    if mode != "ridge":
        canvas.hover(position={"x": 400, "y": 150})
        expect(page.locator(".histogram .tip").first).to_contain_text("step")


def test_attention(visit: Visit) -> None:
    visit.go("attention", "gpt-hot")
    page = visit.page
    answer = visit.server.ask(f"runs/{visit.server.id('gpt-hot')}/attention")
    heads = page.locator(".heads button")
    expect(heads).to_have_count(16)
    cell = heads.nth(5)
    label = cell.get_attribute("aria-label") or ""
    assert number(label.rpartition(": ")[2]) == pytest.approx(
        answer["stats"]["entropy"][1][1], rel=1e-3
    )
    cell.click()
    expect(page.get_by_role("dialog")).to_contain_text("blocks.1.attention.head_1")


def test_the_profile_lays_steps_and_runs_over_each_other(visit: Visit) -> None:
    visit.go("depth", "gpt-frozen,gpt-hot", kind="gradient", stat="rms", step=40, keep="20")
    page = visit.page
    profile = page.get_by_role("group", name=re.compile("over depth"))
    # Each run is drawn as soon as it is there.
    runs = ("gpt-frozen", "gpt-hot")
    lines = ", ".join(f"{run} · step {step}" for run in runs for step in (40, 20))
    expect(profile).to_have_attribute("aria-label", re.compile(lines))
    paths = profile.locator(".profile-line > path:first-child")
    dashes = paths.evaluate_all("all => all.map(one => one.getAttribute('stroke-dasharray'))")
    colours = paths.evaluate_all("all => all.map(one => one.getAttribute('stroke'))")
    assert len(set(zip(dashes, colours, strict=True))) == 4
    # What is read out is what is stored.
    row = page.get_by_role("button", name=re.compile("^head.weight: "))
    stored = visit.server.ask(
        f"runs/{visit.server.id('gpt-hot')}/profile", kind="gradient", stat="rms", step=20
    )
    true = stored["arrays"]["values"][0][stored["sites"].index("head.weight")]
    told = re.findall(r"gpt-hot · step 20 ([^,]+)", row.get_attribute("aria-label") or "")
    assert number(told[0]) == pytest.approx(true, rel=1e-3)


def test_update_ratios_of_several_runs(visit: Visit) -> None:
    visit.go("updates", "gpt-frozen,gpt-hot")
    page = visit.page
    chart = page.get_by_role("img", name=re.compile("Update ratio of each run"))
    expect(chart).to_have_attribute("aria-label", re.compile("gpt-frozen last .* gpt-hot last"))
    still = page.get_by_role("row").filter(has_text="gpt-frozen").get_by_role("cell")
    assert still.nth(1).inner_text() == "2"
    page.get_by_label("Lines").select_option("tensors")
    expect(page.get_by_role("img", name=re.compile("Update ratio of each layer"))).to_be_visible()
    expect(page.get_by_role("row").filter(has_text=FROZEN)).to_contain_text("does not move at all")


@pytest.mark.parametrize("axis", ["time", "tokens"])
def test_the_overview_lays_runs_over_each_other(visit: Visit, axis: str) -> None:
    visit.go("overview", "gpt-frozen,gpt-hot")
    page = visit.page
    loss = page.get_by_role("img", name=re.compile("^Loss"))
    both = re.compile("gpt-frozen · train last .* gpt-hot · train last")
    expect(loss).to_have_attribute("aria-label", both)
    with page.expect_request(lambda request: f"x={axis}" in request.url):
        page.get_by_role("button", name=axis, exact=True).click()
    visit.quiet()
    expect(loss).to_have_attribute("aria-label", both)
    # The alignment goes along to the other views, and is part of the address.
    page.get_by_role("link", name="Runs").click()
    assert visit.settings["align"] == axis
    pressed = page.get_by_role("button", name=axis, exact=True)
    expect(pressed).to_have_attribute("aria-pressed", "true")


def test_distributions_of_several_runs_stand_beside_each_other(visit: Visit) -> None:
    visit.go("distributions", "gpt-frozen,gpt-hot", kind="gradient", site="head.weight")
    for run in ("gpt-frozen", "gpt-hot"):
        name = re.compile(f"head.weight, {run} of gradient")
        expect(visit.page.get_by_role("img", name=name)).to_be_visible()


def test_two_runs_are_compared(visit: Visit) -> None:
    visit.go("runs", "gpt-frozen")
    page = visit.page
    expect(page.get_by_role("row").filter(has_text="torn")).to_contain_text("unreadable")
    page.get_by_label("Compare gpt-hot").check()
    section = page.get_by_role("region", name="Comparison")
    both = section.get_by_role("img", name=re.compile("gpt-frozen last .* gpt-hot last"))
    expect(both).not_to_have_count(0)
    differs = section.get_by_role("row").filter(has_text=re.compile(r"^lr"))
    expect(differs).to_contain_text("0.002")
    expect(differs).to_contain_text("0.04")
    section.get_by_role("button", name="tokens", exact=True).click()
    visit.quiet()
    assert visit.settings["align"] == "tokens"
    expect(both).not_to_have_count(0)


def test_names_are_text_never_markup(visit: Visit) -> None:
    visit.go("series", "gpt-frozen", search="onerror")
    page = visit.page
    expect(page.get_by_role("button", name=MARKUP, exact=True)).to_be_visible()
    assert page.locator("main img").count() == 0
    assert "owned" not in page.title()
