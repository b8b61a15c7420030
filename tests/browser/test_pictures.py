"""Every view draws something; the pictures are those of the documentation.

VITALS_SCREENSHOTS=1 writes them to docs/images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import Visit

PICTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "findings": ("findings", "gpt-frozen", {}),
    "overview": ("overview", "gpt-hot", {"smooth": 0.9}),
    "layers": ("layers", "gpt-frozen", {"kind": "update", "stat": "ratio"}),
    "series": ("layers", "gpt-hot", {"open": "gradient/blocks.2.mlp.down.weight/rms"}),
    "depth": ("depth", "gpt-frozen,gpt-hot", {"keep": "20"}),
    "updates": ("updates", "gpt-frozen", {}),
    "updates-compare": ("updates", "gpt-frozen,gpt-hot", {}),
    "distributions": ("distributions", "gpt-frozen",
                      {"kind": "activation", "site": "blocks.1.mlp.up"}),
    "ridge": ("distributions", "gpt-frozen",
              {"kind": "activation", "site": "blocks.1.mlp.up", "mode": "ridge"}),
    "attention": ("attention", "gpt-hot", {"stat": "entropy"}),
    "compare": ("runs", "gpt-frozen,gpt-hot", {"smooth": 0.9}),
}  # fmt: skip


def _shoot(visit: Visit, path: Path) -> None:
    visit.page.wait_for_timeout(500)
    assert visit.page.locator(".problem").count() == 0
    shown = visit.page.screenshot(path=path)
    # A page with nothing on it is a few kilobytes.
    assert len(shown) > 25_000


@pytest.mark.parametrize("name", PICTURES)
def test_a_view_draws(visit: Visit, pictures: Path, name: str) -> None:
    view, run, settings = PICTURES[name]
    visit.go(view, run, **settings)
    _shoot(visit, pictures / f"page-{name}.png")


def test_dark(visit: Visit, pictures: Path) -> None:
    visit.open_window(color_scheme="dark")
    visit.go("layers", "gpt-hot", kind="activation", stat="std")
    _shoot(visit, pictures / "page-dark.png")


def test_phone(visit: Visit, pictures: Path) -> None:
    visit.open_window(size=(390, 844), device_scale_factor=2)
    visit.go("findings", "gpt-hot")
    _shoot(visit, pictures / "page-phone.png")
