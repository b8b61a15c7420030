"""Who is told by `vitals watch --alerts`, of runs that ended badly."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.rules.builder import RunBuilder
from torchvitals.cli.main import vitals
from torchvitals.record import Event

from .receivers import Hook
from .training import finding


@pytest.mark.parametrize(
    ("status", "tells", "told", "untold"),
    [
        ("died", None, ["The run died", "orphan"], ["the run failed"]),
        ("died", "warning", ["The run died"], ["orphan"]),
        ("failed", None, ["the run failed", "out of memory", "orphan"], ["The run died"]),
    ],
)
def test_who_is_told_and_of_what(
    in_tmp: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch,
    status: str, tells: str | None, told: list[str], untold: list[str],
) -> None:  # fmt: skip
    """A run with alerts of its own has told of its findings; of its death it could not."""
    monkeypatch.setenv("VITALS_ALERT_URLS", hook.url)
    builder = RunBuilder(in_tmp / "runs" / "run", steps=20)
    watch = {**builder.info.watch, "diagnose": True, "alerts": tells}
    builder.info = replace(builder.info, watch=watch)
    one = finding("orphan", "error").to_json()
    data = {"id": "orphan@1", "name": "orphan", "state": "opened", "finding": one}
    builder.events = [
        Event(20, 1.7e9, "finding", "orphan", data),
        Event(20, 1.7e9, "error", "RuntimeError: out of memory"),
    ]
    builder.write(status)
    done = CliRunner().invoke(vitals, ["watch", "run", "--alerts", "error"])
    assert done.exit_code == 1
    sent = str(hook.taken)
    for text in told:
        assert text in sent
    for text in untold:
        assert text not in sent
    assert ("  RuntimeError: out of memory" in done.output) is (status == "failed")
