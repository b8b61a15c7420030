from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from torchvitals.record import Key
from torchvitals.views.as_json import dumps
from torchvitals.views.listing import RunLine


def test_nothing_is_lost_and_it_is_strict_json() -> None:
    value = {
        "nan": math.nan,
        "inf": [math.inf, -math.inf],
        "numpy": (np.float32(0.5), np.int64(3), np.bool_(True)),
        "key": Key("gradient", "fc", "rms"),
        "path": Path("runs"),
        "none": None,
    }

    def refuse(text: str) -> float:
        raise AssertionError(text)

    assert json.loads(dumps(value), parse_constant=refuse) == {
        "nan": "NaN",
        "inf": ["Infinity", "-Infinity"],
        "numpy": [0.5, 3, True],
        "key": "gradient/fc/rms",
        "path": "runs",
        "none": None,
    }
    assert math.isnan(float("NaN"))
    assert float("-Infinity") == -math.inf


def test_dataclasses_become_objects() -> None:
    line = RunLine(name="a", path=Path("runs/a"), status="finished", loss=math.nan)
    found = json.loads(dumps([line]))
    assert found[0]["name"] == "a"
    assert found[0]["loss"] == "NaN"
    assert found[0]["steps"] is None
