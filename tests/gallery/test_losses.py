"""The gallery's scripts about the loss curve, run for real, with the mistake and without."""

from pathlib import Path

import pytest

from tests.gallery.scripts import check


@pytest.mark.parametrize("name", ["loss_not_decreasing", "loss_spike", "validation_increasing"])
def test_it_names_the_mistake_and_nothing_without_it(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
