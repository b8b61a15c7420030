"""Text fits its width, loses no fault to it, and reads the same without colour."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import RenderableType

from tests.views.made_runs import LAYERS, WEIGHTS, make_run
from torchvitals.record import Key
from torchvitals.store import open_run
from torchvitals.views.columns import column_table
from torchvitals.views.layers import RANKINGS, layer_table
from torchvitals.views.listing import RunLine, listing
from torchvitals.views.summary import summarize
from torchvitals.views.summary_text import summary_text
from torchvitals.views.terminal import PLAIN_WIDTH, Screen, columns_text, layers_text, listing_text


def text(view: RenderableType, width: int) -> str:
    screen = Screen(width=width)
    screen.file = io.StringIO()
    screen.show(view)
    return screen.file.getvalue()


def sick(step: int, values: dict[Key, float]) -> None:
    values[Key("gradient", WEIGHTS[2], "num_nan")] = 7.0
    values[Key("gradient", WEIGHTS[2], "norm")] = math.nan if step > 20 else 1.0
    values[Key("update", WEIGHTS[4], "ratio")] = 0.0
    values[Key("update", WEIGHTS[4], "frozen")] = 1.0
    values[Key("activation", f"{'deep.' * 30}layer", "std")] = 1e9


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_everything_fits(tmp_path: Path, width: int) -> None:
    make_run(tmp_path / "runs" / "made", change=sick)
    with open_run(tmp_path / "runs" / "made") as history:
        views = [summary_text(summarize(history), width)]
        for kind in RANKINGS:
            table = layer_table(history, kind)
            assert table is not None
            views.append(layers_text(table, width))
        columns = column_table(history, "summary")
        assert columns is not None
        views.append(columns_text(columns, width))
    views.append(listing_text(listing(tmp_path / "runs"), width))
    for view in views:
        for line in text(view, width).splitlines():
            assert cell_len(line) <= width, line
            assert line == line.rstrip()


@pytest.mark.parametrize("width", [60, 100])
def test_faults_are_in_words(tmp_path: Path, width: int) -> None:
    make_run(tmp_path, change=sick)
    with open_run(tmp_path) as history:
        gradients, updates = layer_table(history, "gradient"), layer_table(history, "update")
        activations = layer_table(history, "activation")
        summary = text(summary_text(summarize(history), width), width)
    assert gradients is not None
    assert updates is not None
    assert activations is not None
    lines = text(layers_text(gradients, width), width).splitlines()
    assert "worst first" in lines[0]
    assert lines[3].startswith(WEIGHTS[2])
    assert lines[3].endswith("7 NaN")
    assert "×××" in lines[3]
    assert "frozen" in text(layers_text(updates, width), width).splitlines()[3]
    # A long name keeps the end that tells it apart.
    shown = text(layers_text(activations, width), width).splitlines()[3]
    assert shown.startswith("…")
    assert "deep.layer  " in shown
    assert "not finite" in summary
    assert "gradient, first at step 1" in summary


def test_wide_terminals_get_more_columns(tmp_path: Path) -> None:
    make_run(tmp_path)
    with open_run(tmp_path) as history:
        table = layer_table(history, "gradient")
    assert table is not None
    narrow, wide = (text(layers_text(table, w), w).splitlines()[2].split() for w in (60, 120))
    assert set(narrow) < set(wide)
    assert {"norm", "min", "max"} <= set(wide)


def test_names_are_not_markup(tmp_path: Path) -> None:
    name = "[bold]odd[/bold] :smile:"

    def change(_step: int, values: dict[Key, float]) -> None:
        values[Key("gradient", name, "rms")] = 1.0
        values[Key("gradient", name, "norm")] = 1e9

    make_run(tmp_path, change=change)
    with open_run(tmp_path) as history:
        table = layer_table(history, "gradient")
        root = layer_table(history, "gradient", site="root")
    assert table is not None
    assert root is not None
    assert name in text(layers_text(table, 120), 120)
    assert "[root module]" in text(layers_text(root, 120), 120)


def test_more_layers_are_announced(tmp_path: Path) -> None:
    make_run(tmp_path)
    with open_run(tmp_path) as history:
        table = layer_table(history, "activation", top=2)
    assert table is not None
    assert f"and {len(LAYERS) - 2} more (--top {len(LAYERS)})" in text(layers_text(table, 100), 100)


def test_problems_stand_under_the_list(tmp_path: Path) -> None:
    line = RunLine(name="x", path=tmp_path, status="broken", problem="It is gone. " * 12)
    shown = text(listing_text([line], 80), 80)
    assert "Broken files" in shown
    assert " ".join(shown.split()).count("It is gone.") == 12


def test_a_pipe_is_a_hundred_columns_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert Screen().width == PLAIN_WIDTH == 100
    monkeypatch.setenv("COLUMNS", "64")
    assert Screen().width == 64
