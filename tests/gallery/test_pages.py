"""The gallery's pages: one a script, as it is, listed in the index."""

from __future__ import annotations

import pytest

from tests.gallery.scripts import FINDINGS, PAGES, SCRIPTS, Told, shown, told

LONGEST = 60
"""Lines of a script: it is read on one screen."""


def test_every_script_has_a_page_and_is_tested() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == FINDINGS.keys()
    assert {path.stem for path in PAGES.glob("*.md")} == {*FINDINGS, "index"}


@pytest.mark.parametrize("name", FINDINGS)
def test_a_page_shows_the_script_as_it_is(name: str) -> None:
    script = (SCRIPTS / f"{name}.py").read_text()
    assert shown(name)[0] == script, "VITALS_GALLERY=1 python -m pytest tests/gallery"
    assert len(script.splitlines()) <= LONGEST
    page = (PAGES / f"{name}.md").read_text()
    assert f"](../rules/{FINDINGS[name]}.md)" in page


def test_the_index_lists_them_in_order() -> None:
    index = (PAGES / "index.md").read_text()
    places = [index.index(f"]({name}.md)") for name in FINDINGS]
    assert places == sorted(places)
    for finding in FINDINGS.values():
        assert f"[`{finding}`](../rules/{finding}.md)" in index


PRINTED = """\
runs/2026-11-16-111804-net  finished · 120 steps · 1 error, 1 note

✗ error  orphan_parameter  0.weight and 1 more · since step 1 · 93 % sure
  They never change.
  • 2 of 6 parameters are in no group
  → add them to the optimizer, at
    lr 3.5e-4
  explains: plateau

· info  plateau  the whole model · since step 165 · 40 % sure
  → lower lr

Every rule was checked.
"""


def test_what_is_compared() -> None:
    assert told(PRINTED) == [
        Told("error", "orphan_parameter", "0.weight", "add them to the optimizer, at lr #")
    ]
    assert (
        told("runs/x  finished · 9 steps · nothing wrong was found\n\nNot checked (2): a, b.\n")
        == []
    )
