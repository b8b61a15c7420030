"""The table in docs/situations.md is the one that the tests stand behind."""

from pathlib import Path

import pytest

from tests.distributed.situations import SPREAD
from tests.situations.matrix import VALUES, cells, table
from tests.situations.trainings import SITUATIONS

ROOT = Path(__file__).parents[2]


def test_the_documentation_shows_the_table():
    page = (ROOT / "docs" / "situations.md").read_text(encoding="utf-8")
    assert table() in page, "print it with: python -m tests.situations.matrix"


@pytest.mark.parametrize(
    "test", sorted({cell for situation in VALUES for cell in cells(situation) if cell})
)
def test_every_cell_names_a_test_that_is_there(test):
    file, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_every_situation_is_in_the_table():
    assert set(VALUES) == set(SITUATIONS) | set(SPREAD)
