"""The gallery's scripts about single layers, run for real, with the mistake and without."""

from pathlib import Path

import pytest

from tests.gallery.scripts import check


@pytest.mark.parametrize("name", ["layer_not_learning", "explosion", "vanishing"])
def test_it_names_the_mistake_and_nothing_without_it(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
