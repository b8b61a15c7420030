"""A folder with runs in it, and the command in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.views.made_runs import WEIGHTS, make_run
from torchvitals.cli.main import vitals
from torchvitals.record import Key

Vitals = Callable[..., Result]


@pytest.fixture
def run() -> Vitals:
    """`run("show", "made")`: the command without a process of its own."""

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(vitals, arguments, prog_name="vitals")

    return invoke


@pytest.fixture
def runs(in_tmp: Path) -> Path:
    """./runs with a sick run `made` and a healthy one `other/plain`."""

    def frozen(_step: int, values: dict[Key, float]) -> None:
        values[Key("update", WEIGHTS[4], "ratio")] = 0.0
        values[Key("update", WEIGHTS[4], "frozen")] = 1.0
        values[Key("summary", "update_ratio", "num_frozen")] = 1.0

    make_run(in_tmp / "runs" / "made", change=frozen)
    make_run(in_tmp / "runs" / "other" / "plain")
    return in_tmp / "runs"
