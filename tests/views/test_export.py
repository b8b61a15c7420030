"""What was exported equals what the history gives, read back with the usual readers."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from tests.views.made_runs import write_columns
from torchvitals.record import ConfigError, Key, RunInfo
from torchvitals.store import History, RunWriter, open_run
from torchvitals.views.export_csv import CsvFile
from torchvitals.views.export_jsonl import JsonlFile
from torchvitals.views.export_parquet import ParquetFile
from torchvitals.views.records import chosen_keys, long_chunks, wide_chunks

COLUMNS: dict[Key, list[float | None]] = {
    Key.scalar("loss"): [1.0, 0.1, math.nan, math.inf, -math.inf, 1e-45, 3.4e38],
    Key("gradient", 'odd "name", with, commas\u2026', "rms"): [None, 0.3, None, math.nan, 5, 6, 7],
    Key("gradient", "fc.weight", "rms"): [1 / 3, 1e-7, 16777216.0, -0.0, 2, 3, 1e10],
    Key("parameter", "never", "rms"): [None] * 7,
}


@pytest.fixture
def history(tmp_path: Path) -> Any:
    with open_run(write_columns(tmp_path / "run", COLUMNS)) as found:
        yield found


def expected(history: History) -> dict[Key, dict[int, float]]:
    found = {}
    for key in COLUMNS:
        steps, values = history.series(key)
        found[key] = dict(zip(steps.tolist(), values.tolist(), strict=True))
    return found


def same(ours: dict[Key, dict[int, float]], theirs: dict[Key, dict[int, float]]) -> None:
    assert ours.keys() == theirs.keys()
    for key, values in theirs.items():
        assert ours[key].keys() == values.keys(), key
        bits = [np.array(list(one.values()), np.float32) for one in (ours[key], values)]
        # Bit for bit, but one NaN is as good as another.
        np.testing.assert_array_equal(bits[0], bits[1])
        assert np.array_equal(np.signbit(bits[0]), np.signbit(bits[1])) or np.isnan(bits[0]).any()


def write(history: History, target: Any, *, wide: bool) -> None:
    keys = chosen_keys(history)
    for chunk in wide_chunks(history, keys, 3) if wide else long_chunks(history, keys):
        (target.wide if wide else target.long)(chunk)
    target.empty(keys, wide=wide)
    target.close()


def as_text(history: History, make: Any, *, wide: bool) -> str:
    file = io.StringIO()
    write(history, make(file), wide=wide)
    return file.getvalue()


def gathered(rows: Any) -> dict[Key, dict[int, float]]:
    found: dict[Key, dict[int, float]] = {key: {} for key in COLUMNS}
    for row in rows:
        key = Key(row["kind"], row["site"], row["stat"])
        found[key][int(row["step"])] = float(row["value"])
        assert float(row["time"]) == 1.7e9 + int(row["step"])
    return found


def spread(rows: Any) -> dict[Key, dict[int, float]]:
    found: dict[Key, dict[int, float]] = {key: {} for key in COLUMNS}
    for row in rows:
        assert float(row["time"]) == 1.7e9 + int(row["step"])
        for key in COLUMNS:
            if row.get(str(key)) not in (None, ""):
                found[key][int(row["step"])] = float(row[str(key)])
    return found


def strict(line: str) -> Any:
    def refuse(text: str) -> float:
        raise AssertionError(f"{text} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_csv_long(history: History) -> None:
    text = as_text(history, CsvFile, wide=False)
    assert "NaN" in text
    assert "-Infinity" in text
    same(gathered(csv.DictReader(io.StringIO(text))), expected(history))


def test_csv_wide(history: History) -> None:
    text = as_text(history, CsvFile, wide=True)
    same(spread(csv.DictReader(io.StringIO(text))), expected(history))


def test_jsonl_long(history: History) -> None:
    lines = as_text(history, JsonlFile, wide=False).splitlines()
    same(gathered(map(strict, lines)), expected(history))


def test_jsonl_wide(history: History) -> None:
    lines = as_text(history, JsonlFile, wide=True).splitlines()
    assert len(lines) == 7
    same(spread(map(strict, lines)), expected(history))


@pytest.mark.parametrize("wide", [False, True])
def test_parquet(history: History, tmp_path: Path, wide: bool) -> None:
    path = tmp_path / "out.parquet"
    write(history, ParquetFile(path), wide=wide)
    rows = parquet.read_table(path).to_pylist()
    same((spread if wide else gathered)(rows), expected(history))
    schema = parquet.read_schema(path)
    assert str(schema.field("loss" if wide else "value").type) == "float"


def test_row_groups_are_written_as_they_fill(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchvitals.views.export_parquet.GROUP_ROWS", 5)
    path = tmp_path / "out.parquet"
    write(history, ParquetFile(path), wide=False)
    assert parquet.ParquetFile(path).num_row_groups == 3
    same(gathered(parquet.read_table(path).to_pylist()), expected(history))


def test_long_texts_are_written_in_pieces(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = as_text(history, CsvFile, wide=False), as_text(history, JsonlFile, wide=False)
    monkeypatch.setattr("torchvitals.views.export_csv.LINES", 2)
    monkeypatch.setattr("torchvitals.views.export_jsonl.LINES", 2)
    assert (as_text(history, CsvFile, wide=False), as_text(history, JsonlFile, wide=False)) == whole


@pytest.mark.parametrize("wide", [False, True])
def test_a_run_without_rows_has_a_header(tmp_path: Path, wide: bool) -> None:
    RunWriter.create(tmp_path / "run", RunInfo(name="empty")).close()
    with open_run(tmp_path / "run") as history:
        text = as_text(history, CsvFile, wide=wide)
        assert text.startswith("step,time")
        assert text.count("\n") == 1
        assert as_text(history, JsonlFile, wide=wide) == ""
        write(history, ParquetFile(tmp_path / "x.parquet"), wide=wide)
    assert parquet.read_table(tmp_path / "x.parquet").num_rows == 0


def test_choosing_columns(history: History) -> None:
    def sites(**options: Any) -> list[str]:
        return [key.site for key in chosen_keys(history, **options)]

    assert sites(kinds=["scalar"]) == ["loss"]
    assert sites(site="^fc") == ["fc.weight"]
    assert len(sites(stats=["rms"])) == 3
    assert len(sites(kinds=["gradient", "parameter"], stats=["rms"], site="weight|never")) == 2
    with pytest.raises(ConfigError, match="no column of this run fits update; it has 4 others"):
        chosen_keys(history, kinds=["update"])


def test_a_run_that_goes_on_is_exported_up_to_where_it_was(tmp_path: Path) -> None:
    from torchvitals.record import Row

    header = (Key.scalar("loss"), Key.scalar("other"))
    with RunWriter.create(tmp_path, RunInfo(name="live")) as writer:

        def more(first: int) -> None:
            for step in range(first, first + 5):
                writer.append(Row(step, 1e9 + step, header, np.ones(2, dtype=np.float32)))
            writer.commit()

        more(0)
        with open_run(tmp_path) as history:
            chunks = long_chunks(history, list(header))
            assert len(next(chunks).steps) == 5
            more(5)
            assert len(next(chunks).steps) == 5
