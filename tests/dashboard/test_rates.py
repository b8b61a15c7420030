"""Which changes of a learning rate are events."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.dashboard.asking import Api
from torchvitals.dashboard.answers.rates import jumps_of
from torchvitals.record import Key, Row, RunInfo
from torchvitals.store import RunWriter

STAIRS = [1e-3] * 10 + [1e-4] * 10 + [1e-5] * 10
WARM_UP = [1e-3 * (step + 1) / 20 for step in range(20)] + [1e-3] * 10
COSINE = [1e-3 * (1 + math.cos(math.pi * step / 40)) / 2 for step in range(40)]


@pytest.mark.parametrize(
    ("rates", "steps"),
    [
        (STAIRS, [10, 20]),
        (WARM_UP, []),
        ([0.0, *WARM_UP], []),
        (COSINE, []),
        (COSINE[:30] + COSINE[:30], [30]),
        ([1e-3] * 6 + [0.0] * 6, [6]),
        ([1e-3, 1e-3 * 1.2, 1e-3 * 1.2], []),
        ([math.nan] * 5, []),
        ([1e-3], []),
    ],
)
def test_jumps(rates: list[float], steps: list[int]) -> None:
    assert jumps_of(np.array(rates, dtype=np.float32)) == steps


def test_a_jump_is_an_event_of_all_groups(
    serving: Callable[..., TestClient], tmp_path: Path
) -> None:
    header = tuple(Key("optimizer", f"group{i}", "lr") for i in range(3))
    with RunWriter.create(tmp_path / "runs" / "stairs", RunInfo(name="stairs")) as writer:
        for step, rate in enumerate(STAIRS):
            values = np.array([rate, rate, 5e-4], dtype=np.float32)
            writer.append(Row(step, 1.7e9 + step, header, values))
    api = Api(serving(tmp_path / "runs"))
    found = api.json(f"{api.run('stairs')}/events")["events"]
    assert [(one["step"], one["time"], one["kind"]) for one in found] == [
        (10, 1.7e9 + 10, "lr"), (20, 1.7e9 + 20, "lr"),
    ]  # fmt: skip
    assert found[0]["text"] == "0.001 → 0.0001"
    assert found[0]["data"] == {"groups": ["group0", "group1"]}
    assert api.json(f"{api.run('stairs')}/events", kind="checkpoint")["events"] == []
