"""JSON lines and CSV, read back."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

import torchvitals
from torchvitals.record import Key, Row
from torchvitals.sinks import Csv, JsonLines

from .training import info, train


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def test_json_lines_hold_what_the_run_holds(tmp_path: Path) -> None:
    train(tmp_path / "run", ["jsonl", JsonLines(tmp_path / "all" / "rows.jsonl", series=".*")])
    lines = [json.loads(line) for line in lines_of(tmp_path / "run" / "rows.jsonl")]
    steps = [line for line in lines if "event" not in line]
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    history = torchvitals.open_run(tmp_path / "run")
    for line in steps:
        stored = {str(key): value for key, value in history.row(line["step"]).items()}
        numbers = {k: v for k, v in line.items() if k not in {"step", "time"}}
        assert numbers
        for name, value in numbers.items():
            assert np.float32(value) == np.float32(stored[name]), name
    assert "saved" in [line["text"] for line in lines if "event" in line]
    wide = [json.loads(line) for line in lines_of(tmp_path / "all" / "rows.jsonl")]
    last = next(line for line in reversed(wide) if line["step"] == 6)
    assert len(last) == len(history.row(6)) + 2


def test_csv_has_a_line_a_value(tmp_path: Path) -> None:
    losses = train(tmp_path / "run", f"csv:{tmp_path}/rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [float(v["value"]) for v in found if v["kind"] == "scalar"] == pytest.approx(losses)
    assert {v["site"] for v in found if v["kind"] == "clock"} >= {"forward", "backward"}


@pytest.mark.parametrize("kind", [JsonLines, Csv])
def test_nan_and_infinity_are_spelled_out_and_files_are_added_to(
    kind: type[JsonLines] | type[Csv], tmp_path: Path
) -> None:
    path = tmp_path / "rows"
    keys = tuple(map(Key.scalar, ("a", "b", "c", "d, e")))
    values = np.array([math.nan, math.inf, -math.inf, 0.1], dtype=np.float32)
    for step in (1, 2):
        sink = kind(path)
        sink.open(info(), tmp_path)
        sink.write(Row(step, 5.0, keys, values))
        sink.close("finished")
    with path.open(newline="") as file:
        if kind is JsonLines:
            first, second = map(json.loads, file)
            assert first == {"step": 1, "time": 5.0, "a": "NaN", "b": "Infinity",
                             "c": "-Infinity", "d, e": 0.1}  # fmt: skip
            assert second["step"] == 2
        else:
            lines = list(csv.reader(file))
            assert len(lines) == 9
            assert lines[4] == ["1", "5.0", "scalar", "d, e", "value", "0.1"]
            assert [line[-1] for line in lines[5:8]] == ["NaN", "Infinity", "-Infinity"]
