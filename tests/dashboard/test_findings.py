"""Findings of runs that have none stored: a diagnosis on demand, made once a version."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.dashboard.asking import Api
from tests.views.made_runs import START, make_run
from torchvitals.dashboard import findings
from torchvitals.record import Event, Finding, Key, Row, RunInfo, Severity
from torchvitals.store import History, RunWriter

FOUND = [
    Finding(name=name, severity=severity, sites=("fc",), first_step=3, last_step=9, evidence=(),
            explanation="so it is", resolved_step=resolved)
    for name, severity, resolved in (
        ("small", Severity.INFO, None),
        ("over", Severity.ERROR, 8),
        ("large", Severity.ERROR, None),
    )
]  # fmt: skip


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A room `diagnosis` that finds the same in every run; the runs it was asked about."""
    asked: list[Path] = []

    def diagnose(history: History) -> SimpleNamespace:
        asked.append(history.path)
        return SimpleNamespace(findings=FOUND)

    room = ModuleType("torchvitals.diagnosis")
    room.diagnose = diagnose  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvitals.diagnosis", room)
    monkeypatch.setattr(findings, "AGAIN_S", 0.0)
    return asked


def test_a_diagnosis_on_demand(
    serving: Callable[..., TestClient], tmp_path: Path, diagnosed: list[Path]
) -> None:
    path = make_run(tmp_path / "runs" / "a")
    api = Api(serving(tmp_path / "runs"))
    (line,) = api.json("runs")["runs"]
    assert line["num_findings"] is None, "a list must not take a diagnosis of each run"
    assert not diagnosed
    got = api.json(f"{api.run('a')}/findings")
    assert got["source"] == "computed"
    assert [(one["name"], one["state"]) for one in got["findings"]] == [
        ("large", "open"), ("small", "open"), ("over", "resolved"),
    ]  # fmt: skip
    assert len({one["id"] for one in got["findings"]}) == 3
    api.json(f"{api.run('a')}/findings")
    assert len(diagnosed) == 1
    with RunWriter.create(path, RunInfo(name="a"), resume=True) as writer:
        writer.append(Row(41, START, (Key.scalar("loss"),), np.ones(1, np.float32)))
    api.json(f"{api.run('a')}/findings")
    assert len(diagnosed) == 2
    (line,) = api.json("runs")["runs"]
    assert (line["num_findings"], line["worst"]["name"]) == (2, "large")


def test_without_a_diagnosis_there_is_none(
    serving: Callable[..., TestClient], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvitals.diagnosis", None)
    api = Api(serving(folder))
    got = api.json(f"{api.run()}/findings")
    assert (got["source"], got["findings"]) == ("none", [])


def test_a_run_that_died_says_so_beside_what_it_stored(
    serving: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not store that itself, and nobody stores it for it."""
    monkeypatch.setattr("torchvitals.dashboard.answers.runs.CHECK_S", 0.0)
    writer = RunWriter.create(tmp_path / "runs" / "a", RunInfo(name="a"))
    data = {"id": "small@3", "state": "opened", "finding": FOUND[0].to_json()}
    writer.event(Event(9, START, "finding", "small", data))
    writer.append(Row(9, START, (Key.scalar("loss"),), np.ones(1, np.float32)))
    writer.commit()
    api = Api(serving(tmp_path / "runs"))
    got = api.json(f"{api.run('a')}/findings")
    assert [one["name"] for one in got["findings"]] == ["small"]
    (tmp_path / "runs" / "a" / "run.lock").unlink()  # as the kernel does for a killed process
    got = api.json(f"{api.run('a')}/findings")
    assert got["source"] == "stored"
    assert [(one["name"], one["state"]) for one in got["findings"]] == [
        ("stalled", "open"), ("small", "open"),
    ]  # fmt: skip
    (line,) = api.json("runs")["runs"]
    assert (line["status"], line["num_findings"], line["worst"]["name"]) == ("died", 2, "stalled")
    writer.close()
    got = api.json(f"{api.run('a')}/findings")
    assert [one["name"] for one in got["findings"]] == ["small"]


def test_a_run_that_hangs_shows_though_nothing_is_stored(
    serving: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings, "QUIET_S", 0.0)
    begun = time.time()
    with RunWriter.create(tmp_path / "runs" / "a", RunInfo(name="a")) as writer:
        api = Api(serving(tmp_path / "runs"))
        for step in range(1, 10):
            writer.append(Row(step, begun, (Key.scalar("loss"),), np.ones(1, np.float32)))
        writer.commit()
        place = f"{api.run('a')}/findings"
        before = api.json(place)
        assert "stalled" not in {one["name"] for one in before["findings"]}
        # The same file, a while later.
        monkeypatch.setattr("torchvitals.rules.run.time.time", lambda: begun + 61.0)
        after = api.json(place)
        assert [one["name"] for one in after["findings"]][:1] == ["stalled"]
        assert after["version"] != before["version"]
        writer.append(Row(10, begun + 61.0, (Key.scalar("loss"),), np.ones(1, np.float32)))
        writer.commit()
        assert "stalled" not in {one["name"] for one in api.json(place)["findings"]}
