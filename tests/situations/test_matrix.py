"""The table in docs/situations.md is the one that the tests stand behind."""

from pathlib import Path

import pytest

from tests.situations.matrix import MATRIX, table

ROOT = Path(__file__).parents[2]


def test_the_documentation_shows_the_table():
    page = (ROOT / "docs" / "situations.md").read_text(encoding="utf-8")
    assert table() in page, "print it with: python -m tests.situations.matrix"


@pytest.mark.parametrize("test", sorted({c for cells in MATRIX.values() for c in cells if c}))
def test_every_cell_names_a_test_that_is_there(test):
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
