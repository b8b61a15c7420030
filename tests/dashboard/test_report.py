"""The report as a text: what is in it, and what it needs. tests/browser opens it."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dashboard.asking import Frame
from torchvitals.dashboard.report import answers, report
from torchvitals.record import Key, StoreError
from torchvitals.store import open_run


@pytest.fixture
def static(tmp_path: Path) -> Path:
    """A page as the build leaves it, with what must not end its element."""
    folder = tmp_path / "static"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(
        '<script type="module" crossorigin src="./assets/a.js"></script>'
        '<link rel="stylesheet" crossorigin href="./assets/a.css">'
    )
    (folder / "assets" / "a.js").write_text("const text = '</script>';")
    (folder / "assets" / "a.css").write_text("body { color: red }")
    (folder / "icon.svg").write_text("<svg/>")
    return folder


def test_everything_is_inside(made: Path, static: Path) -> None:
    with open_run(made) as history:
        text = report(history, static=static)
    assert "const text = '<\\/script>';" in text
    assert "body { color: red }" in text
    # Nothing is named that would have to be fetched.
    assert not re.findall(r"(?:src|href)=(?!\"data:)", text)
    assert "default-src 'none'" in text
    assert "connect-src" not in text
    (packed,) = re.findall(r'id="answers">([^<]+)<', text)
    assert b"gradient" in gzip.decompress(base64.b64decode(packed))


def test_the_run_has_only_columns_that_are_in_the_report(made: Path) -> None:
    with open_run(made) as history:
        found = answers(history)
        stored = {(key.kind, key.stat) for key in history.keys()}
    shown = [Frame(body.data).header for name, body in found.items() if name.startswith("series/")]
    series = {one["key"] for header in shown for one in header["series"]}
    columns = json.loads(found["run"].data)["columns"]
    listed = 0
    for kind, about in columns.items():
        for stat, places in about["stats"].items():
            for site in (about["sites"][at] for at in places):
                key = str(Key(kind, site, stat))
                assert key in series or f"matrix/{kind}/{stat}" in found, key
                listed += 1
    assert listed > 0
    assert {(kind, stat) for kind, about in columns.items() for stat in about["stats"]} <= stored


def test_without_the_page_it_says_how_to_get_it(made: Path, tmp_path: Path) -> None:
    with open_run(made) as history, pytest.raises(StoreError, match="make page"):
        report(history, static=tmp_path / "nowhere")


def test_it_needs_no_server() -> None:
    code = (
        "import sys\n"
        "for name in ('starlette', 'uvicorn', 'torch'): sys.modules[name] = None\n"
        "import torchvitals.dashboard.report"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
