"""The pace in words and bars: complete without colour, and as wide as it may be."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from rich.cells import cell_len

from tests.views.made_runs import START, make_run
from tests.views.paced_runs import PHASES, epoch_events, make_paced
from tests.views.test_terminal import text
from torchvitals.record import Event, Key
from torchvitals.store import open_run
from torchvitals.views.bars import TEXTURES, blocks, progress_bar, time_bar
from torchvitals.views.categories import category_table
from torchvitals.views.columns import TITLES, column_table
from torchvitals.views.status import status_of
from torchvitals.views.status_text import status_text
from torchvitals.views.summary import summarize
from torchvitals.views.summary_text import summary_text
from torchvitals.views.terminal import columns_text

SHARES = {phase: percent / 100 for phase, percent in PHASES.items()}


def everything(step: int, values: dict[Key, float]) -> None:
    for rank in range(8):
        values[Key("rank", str(rank), "step_s")] = 0.31 if rank != 3 else 0.384
        values[Key("rank", str(rank), "data_s")] = 0.01 if rank != 3 else 0.08
    for at in range(12 if step % 100 == 0 else 0):
        values[Key("eval", f"a/very/long/split/{at}", "loss")] = 1.0


def shown(path: Path, width: int, *, step: int | None = None) -> str:
    with open_run(path) as history:
        return text(summary_text(summarize(history, step=step), width), width)


def status_shown(path: Path, width: int) -> str:
    with open_run(path) as history:
        return text(status_text(status_of(history, clock=lambda: START), width), width)


def test_the_lines_of_a_summary(tmp_path: Path) -> None:
    run = make_paced(
        tmp_path / "run", num_steps=1500, change=everything, status="failed", total_steps=3000
    )
    lines = {line[:15].strip(): line[15:] for line in shown(run, 100).splitlines()}
    assert (
        lines["speed"] == "3.23 steps/s · 413 samples/s · 52.9k tokens/s · 1.2 TFLOP/s · 41 % MFU"
    )
    assert lines["step time"] == "300 ms median · 420 ms at p95"
    assert lines["memory"] == "process 1.2 GB (peak 1.5 GB) · system 43 % of 16 GB"
    assert lines["noise scale"] == "1,230, batch 128 · larger batches still pay"
    assert lines["ranks"] == ("rank 3 is the slowest of 8 · 384 ms a step, 24 % above the median")
    assert lines["progress"].endswith("  50 % of 3,000 steps")
    assert lines["progress"].count("█") == lines["progress"].count("░")
    assert "falling, best 1." in lines["loss"]
    assert "lower in 1,000 steps · about 1.7" in lines["outlook"]
    assert lines["schedule"] == "constant at 0.001"
    assert lines["val/loss"].endswith("best so far")
    assert "and 8 more (--kind eval)" in shown(run, 100)
    assert "rank 3 waits 80 ms for data, the median 10 ms" in shown(run, 100)


def test_the_legend_has_every_phase_in_words(tmp_path: Path) -> None:
    lines = shown(make_paced(tmp_path / "run"), 120).splitlines()
    (at,) = [at for at, line in enumerate(lines) if line.startswith("time ")]
    said = lines[at + 1].strip().split(" · ")
    assert said == [f"{TEXTURES[name][0]} {name} {percent} %" for name, percent in PHASES.items()]
    assert len(lines[at].split()[1]) == 60


def test_the_time_is_that_of_measured_steps(tmp_path: Path) -> None:
    assert "of measured steps" not in shown(make_paced(tmp_path / "all"), 100)
    assert "of measured steps" in shown(make_paced(tmp_path / "some", every=10), 100)


@pytest.mark.parametrize("width", [50, 60, 80, 100, 200])
def test_everything_fits(tmp_path: Path, width: int) -> None:
    events = epoch_events({1: 0, 2: 100}, 30)
    run = make_paced(tmp_path / "run", change=everything, events=events, status="failed", every=7)
    for view in (shown(run, width), status_shown(run, width)):
        for line in view.splitlines():
            assert cell_len(line) <= width, line
            assert line == line.rstrip()
        # Facts break onto lines of their own, none is lost.
        for part in ("MFU", "monitor 1 %", "of measured steps", "(peak 12 GB)", "epoch 2 of 30"):
            assert part in view, part


def test_a_cut_says_that_it_is_one(tmp_path: Path) -> None:
    lines = shown(make_paced(tmp_path / "run"), 60).splitlines()
    (update,) = [line for line in lines if line.startswith("update ratio")]
    assert update.endswith("…")


def test_an_older_run_has_none_of_it(tmp_path: Path) -> None:
    view = shown(make_run(tmp_path), 100)
    for name in ("speed", "step time", "time ", "memory", "progress", "outlook", "ranks", "noise"):
        assert f"\n{name}" not in view, name
    assert "\n\n\n" not in view


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    def change(step: int, values: dict[Key, float]) -> None:
        if step > 200:
            values[Key.scalar("loss")] = math.nan

    run = make_paced(tmp_path / "run", change=change, total_steps=1000)
    for view in (shown(run, 100), status_shown(run, 100)):
        assert "not finite from step 201 on" in view
        assert "outlook" not in view
        assert "NaN" in view


def test_routine_events_are_no_news(tmp_path: Path) -> None:
    events = [
        *epoch_events({1: 0, 2: 100, 3: 200}, 3),
        Event(2, START, "flops", "the model computes 1e9 FLOPs a step", {"flops": 1e9}),
        Event(120, START, "checkpoint", "saved", {}),
    ]
    view = shown(make_paced(tmp_path / "run", events=events), 100)
    assert "step 120: checkpoint: saved" in view
    assert "begins" not in view
    assert "FLOPs a step" not in view
    assert "epoch          3 of 3 · 100 steps each" in view


def test_a_run_without_steps(tmp_path: Path) -> None:
    run = make_paced(tmp_path / "run", num_steps=0, total_steps=10, status="failed")
    assert "no step yet" in status_shown(run, 80)
    assert "0 %" in shown(run, 80)


def test_long_waits_for_data_get_a_word(tmp_path: Path) -> None:
    def change(_step: int, values: dict[Key, float]) -> None:
        values[Key("clock", "data", "mean_s")] = 0.25 * values[Key("clock", "step", "mean_s")]

    assert "25 % waiting for data" in shown(make_paced(tmp_path / "run", change=change), 100)


def test_status_says_what_stands_out(tmp_path: Path) -> None:
    def change(_step: int, values: dict[Key, float]) -> None:
        values[Key("summary", "update_ratio", "num_frozen")] = 2.0

    run = make_paced(tmp_path / "run", change=change)
    assert "layers         2 frozen\n" in status_shown(run, 100)


class TestBars:
    @pytest.mark.parametrize("width", [8, 10, 37, 60])
    def test_a_time_bar_is_as_wide_as_asked(self, width: int) -> None:
        assert len(time_bar(SHARES, width)) == width
        assert min(blocks(SHARES, width).values()) >= 1

    def test_blocks_follow_the_shares(self) -> None:
        found = blocks({"data": 0.5, "forward": 0.25, "backward": 0.25}, 40)
        assert found == {"data": 20, "forward": 10, "backward": 10}
        assert blocks({"data": 0.001, "forward": 0.999}, 40) == {"data": 0, "forward": 40}

    def test_phases_differ_without_colour(self) -> None:
        textures = [texture for texture, _ in TEXTURES.values()]
        assert len(set(textures)) == len(textures)
        assert list(TEXTURES) == list(PHASES)

    def test_a_progress_bar_is_full_at_the_end_only(self) -> None:
        assert progress_bar(0.0, 10).plain == "░" * 10
        assert progress_bar(0.001, 10).plain == "█" + "░" * 9
        assert progress_bar(0.999, 10).plain == "█" * 9 + "░"
        assert progress_bar(1.0, 10).plain == "█" * 10


class TestTables:
    def test_every_kind_beside_the_tensors_has_a_title(self) -> None:
        from torchvitals.cli.options import KINDS
        from torchvitals.record import SCALAR, SIGN_KINDS, TENSOR_KINDS

        assert TITLES.keys() >= SIGN_KINDS
        assert set(KINDS) == SIGN_KINDS | TENSOR_KINDS | {SCALAR}

    def test_values_have_their_units(self, tmp_path: Path) -> None:
        with open_run(make_paced(tmp_path / "run")) as history:
            views = {}
            for kind in ("clock", "speed", "machine"):
                table = column_table(history, kind)
                assert table is not None
                views[kind] = text(columns_text(table, 100), 100)
        assert views["clock"].startswith("Time of a step\n")
        assert "310 ms" in views["clock"]
        assert "41 %" in views["speed"]
        assert "413" in views["speed"]
        for part in ("1.2 GB", "170 %", "43 %"):
            assert part in views["machine"]

    def test_categories_worst_first(self, tmp_path: Path) -> None:
        losses = {"easy": 0.1, "hard": 3.0, "val:odd": 2.0, "broken": math.nan}

        def change(step: int, values: dict[Key, float]) -> None:
            for label, loss in losses.items():
                if step % 100 == 0 and (label != "hard" or step == 100):
                    values[Key("category", label, "loss")] = loss
                    values[Key("category", label, "num_samples")] = 1234.0
            if step == 100:
                values[Key("category", "broken", "num_nonfinite")] = 7.0

        with open_run(make_paced(tmp_path / "run", change=change)) as history:
            table = category_table(history, top=3)
            assert table is not None
            assert category_table(history, step=50) is None
            some = category_table(history, site="^val:")
            assert some is not None
        assert [line.name for line in table.lines] == ["broken", "hard", "val:odd"]
        assert table.notes == ["1,234 samples, 7 not finite", "1,234 samples", "1,234 samples"]
        assert [line.name for line in some.lines] == ["val:odd"]
        view = text(columns_text(table, 100), 100)
        assert view.startswith("Loss by category, worst first\n")
        assert "and 1 more (--top 4)" in view

    def test_a_run_without_categories(self, tmp_path: Path) -> None:
        with open_run(make_run(tmp_path)) as history:
            assert category_table(history) is None
