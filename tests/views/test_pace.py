"""The pace of a run: what it says of known columns, and that it is silent where there are none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.views.made_runs import INFO, START, make_run, write_columns
from tests.views.paced_runs import (
    GB,
    PHASES,
    STEP_S,
    epoch_events,
    machine,
    make_paced,
    paced,
    write_steps,
)
from torchvitals.record import Event, Key, Row, RunInfo
from torchvitals.store import RunWriter, open_run
from torchvitals.views import pace as pace_view
from torchvitals.views.as_json import dumps
from torchvitals.views.pace import Pace, pace_of
from torchvitals.views.progress import done_step, progress_of, ticked
from torchvitals.views.stragglers import slowest_rank
from torchvitals.views.summary import summarize


def pace(path: Path, *, stop: int | None = None, now: float = START) -> Pace:
    with open_run(path) as history:
        return pace_of(history, stop=stop, now=now)


def test_speed_and_step_time(tmp_path: Path) -> None:
    found = pace(make_paced(tmp_path / "run"))
    assert found.step_s == pytest.approx(0.30)
    assert found.step_p95_s == pytest.approx(0.42)
    assert found.steps_per_s == pytest.approx(1 / STEP_S)
    assert found.samples_per_s == pytest.approx(128 / STEP_S)
    assert found.tokens_per_s == pytest.approx(128 * 128 / STEP_S)
    assert found.flops_per_s == pytest.approx(1.2e12)
    assert found.mfu == pytest.approx(0.41)
    assert (found.noise_scale, found.batch_size) == (1230, 128)
    assert found.data_frac == pytest.approx(0.04)


def test_shares_of_a_step_add_up(tmp_path: Path) -> None:
    shares = pace(make_paced(tmp_path / "run")).shares
    assert list(shares) == list(PHASES)
    assert sum(shares.values()) == pytest.approx(1)
    for phase, percent in PHASES.items():
        assert shares[phase] == pytest.approx(percent / 100)


def test_the_phases_are_those_of_the_live_half() -> None:
    from torchvitals.probes import clocks

    assert pace_view.PHASES == clocks.PHASES


def test_less_than_nothing_is_nothing(tmp_path: Path) -> None:
    def change(_step: int, values: dict[Key, float]) -> None:
        values[Key("clock", "forward", "wall_s")] = -0.001

    shares = pace(make_paced(tmp_path / "run", change=change)).shares
    assert shares["forward"] == 0
    assert sum(shares.values()) == pytest.approx(1)


def test_only_the_last_rows_count(tmp_path: Path) -> None:
    def slower(step: int, values: dict[Key, float]) -> None:
        if step <= 250:
            values[Key("speed", "run", "steps_per_s")] = 100.0
            values[Key("clock", "data", "wall_s")] = 10.0

    found = pace(make_paced(tmp_path / "run", num_steps=300, change=slower))
    assert found.steps_per_s == pytest.approx(1 / STEP_S)
    assert found.shares["data"] == pytest.approx(0.04)
    before = pace(tmp_path / "run", stop=200)
    assert before.steps_per_s == pytest.approx(100)
    assert before.shares["data"] > 0.9


def test_rates_are_weighted_by_the_time_they_stand_for(tmp_path: Path) -> None:
    # Steps of 0.1 s and of 0.9 s in turns: 2 steps a second, not the mean of 10 and 1.11.
    def change(step: int, values: dict[Key, float]) -> None:
        seconds = 0.1 if step % 2 else 0.9
        values[Key("clock", "step", "mean_s")] = seconds
        values[Key("speed", "run", "steps_per_s")] = 1 / seconds

    assert pace(make_paced(tmp_path / "run", change=change)).steps_per_s == pytest.approx(2)


def test_a_resumed_run_has_the_pace_of_its_newest_attempt(tmp_path: Path) -> None:
    info = RunInfo(name="twice", watch={"total_steps": 1000})
    for first, gap_s, speed in ((1, 1.0, 1.0), (201, 0.1, 10.0)):

        def values(step: int, speed: float = speed) -> dict[Key, float]:
            return {**paced(step), Key("speed", "run", "steps_per_s"): speed}

        with RunWriter.create(tmp_path / "run", info, resume=True) as writer:
            write_steps(writer, range(first, first + (200 if first == 1 else 6)), values,
                        gap_s=gap_s)  # fmt: skip
    found = pace(tmp_path / "run")
    assert found.steps_per_s == pytest.approx(10)
    assert found.progress.step_s == pytest.approx(0.1)


def test_memory(tmp_path: Path) -> None:
    memory = pace(make_paced(tmp_path / "run")).memory
    assert memory is not None
    assert memory.process_bytes == pytest.approx(1.2 * GB)
    assert memory.process_peak_bytes == pytest.approx(1.5 * GB)
    assert memory.system_frac == pytest.approx(0.43)
    (gpu,) = memory.gpus
    assert gpu.index == 0
    assert (gpu.used_bytes, gpu.total_bytes) == (pytest.approx(11.2 * GB), pytest.approx(24 * GB))
    assert gpu.reserved_bytes is None


def test_flops_of_a_step(tmp_path: Path) -> None:
    event = Event(2, START, "flops", "", {"flops": 32_440_320})
    assert pace(make_paced(tmp_path / "run", events=[event])).flops == 32_440_320


def test_evaluations_and_which_way_is_better(tmp_path: Path) -> None:
    def change(step: int, values: dict[Key, float]) -> None:
        if step == 200:
            values[Key("eval", "val", "accuracy")] = 0.95
            values[Key("eval", "val", "loss")] = math.nan
            values[Key("eval", "test", "temperature")] = 1.0

    found = {
        (one.split, one.name): one
        for one in pace(make_paced(tmp_path / "run", change=change)).evaluations
    }
    accuracy, loss = found["val", "accuracy"], found["val", "loss"]
    assert accuracy.best == pytest.approx(0.95)
    assert accuracy.best_step == 200
    assert accuracy.higher_is_better is True
    assert (loss.best_step, loss.trend.num_bad, loss.higher_is_better) == (300, 1, False)
    assert found["test", "temperature"].higher_is_better is None
    assert found["test", "temperature"].best is None


@pytest.mark.parametrize(
    ("name", "higher"),
    [
        ("loss", False),
        ("top1_accuracy", True),
        ("topAcc", True),
        ("word_error_rate", False),
        ("score_error", False),
        ("classes", None),
        ("mapping", None),
        ("mAP", True),
    ],
)
def test_names_say_which_way_is_better(name: str, higher: bool | None) -> None:
    from torchvitals.views.evaluations import higher_is_better

    assert higher_is_better(name) is higher


def test_the_schedule_in_words(tmp_path: Path) -> None:
    def change(step: int, values: dict[Key, float]) -> None:
        values[Key("optimizer", "group0", "lr")] = 1e-3 * min(step / 100, 1)

    schedule = pace(make_paced(tmp_path / "run", change=change)).schedule
    assert schedule is not None
    assert "linear warm-up" in schedule


class TestProgress:
    def test_the_total_that_was_given(self, tmp_path: Path) -> None:
        progress = pace(make_paced(tmp_path / "run", total_steps=1000)).progress
        assert (progress.step, progress.total_steps, progress.frac) == (300, 1000, 0.3)
        assert progress.step_s == pytest.approx(STEP_S)
        # It has ended: nothing is left to wait for.
        assert progress.eta_s is None

    @pytest.mark.parametrize(("first", "now"), [(0, 2), (1, 3)])
    def test_epochs_give_a_total(self, tmp_path: Path, first: int, now: int) -> None:
        begins = {first: 0, first + 1: 100, first + 2: 200}
        events = epoch_events(begins, epochs=5)
        progress = pace(make_paced(tmp_path / "run", num_steps=250, events=events)).progress
        assert (progress.epoch, progress.num_epochs) == (now, 5)
        assert (progress.steps_per_epoch, progress.total_steps) == (100, 500)

    def test_the_end_of_the_first_epoch_is_enough(self, tmp_path: Path) -> None:
        def change(step: int, values: dict[Key, float]) -> None:
            if step == 100:
                values[Key("epoch", "run", "number")] = 1

        run = make_paced(
            tmp_path / "run", num_steps=110, change=change, events=epoch_events({1: 0}, 3)
        )
        assert pace(run).progress.total_steps == 300
        assert pace(run, stop=90).progress.total_steps is None

    def test_without_the_number_of_epochs_there_is_no_total(self, tmp_path: Path) -> None:
        run = make_paced(tmp_path / "run", events=epoch_events({1: 0, 2: 100}))
        assert (pace(run).progress.epoch, pace(run).progress.total_steps) == (2, None)

    def test_time_left_of_a_run_that_is_running(self, tmp_path: Path) -> None:
        info = RunInfo(name="run", watch={"total_steps": 100})
        with RunWriter.create(tmp_path, info) as writer:
            write_steps(writer, range(1, 51), paced, gap_s=2.0)
            writer.commit()
            end = START + 100.0
            with open_run(tmp_path) as history:
                found = progress_of(history, now=end)
                assert found.eta_s == pytest.approx(100)
                # The clock runs until the next row is due, then it waits.
                assert ticked(found, end + 1.5).eta_s == pytest.approx(98.5)
                assert ticked(found, end + 15).eta_s == pytest.approx(98)
                assert ticked(found, end + 15).silent_s is None
                assert ticked(found, end + 60).silent_s == pytest.approx(60)
                assert progress_of(history, stop=20, now=end).eta_s is None

    def test_beyond_the_total(self, tmp_path: Path) -> None:
        with RunWriter.create(tmp_path, RunInfo(name="run", watch={"total_steps": 10})) as writer:
            write_steps(writer, range(1, 51), paced)
            writer.commit()
            with open_run(tmp_path) as history:
                found = progress_of(history, now=START)
        assert (found.frac, found.eta_s) == (1.0, None)

    def test_a_sample_of_the_machine_is_no_step(self, tmp_path: Path) -> None:
        run = make_paced(tmp_path / "run", num_steps=20)
        with RunWriter.create(tmp_path / "later", INFO) as writer:
            write_steps(writer, range(1, 21), paced)
            write_steps(writer, [21], lambda _: machine())
        with RunWriter.create(tmp_path / "first", INFO) as writer:
            write_steps(writer, [1], lambda _: machine())
        for path, step in ((run, 20), (tmp_path / "later", 20), (tmp_path / "first", None)):
            with open_run(path) as history:
                assert done_step(history) == step
                assert summarize(history).last_step == step


class TestOutlook:
    def test_the_loss_at_the_last_step(self, tmp_path: Path) -> None:
        run = make_paced(tmp_path / "run", num_steps=1500, total_steps=3000, status="failed")
        found = pace(run).outlook
        assert found is not None
        assert found.word == "falling"
        assert found.change_per_1000 is not None
        assert found.change_per_1000 < 0
        assert found.at == 3000
        assert found.low is not None
        assert found.high is not None
        assert found.low <= 1.5 + 3.0 * (1 + 3000 / 20) ** -0.5 <= found.high

    def test_a_finished_run_goes_nowhere(self, tmp_path: Path) -> None:
        run = make_paced(tmp_path / "run", num_steps=1500, total_steps=3000)
        now, before = pace(run).outlook, pace(run, stop=1400).outlook
        assert now is not None
        assert now.at is None
        assert before is not None
        assert before.at == 3000

    def test_nothing_is_forecast_for_a_run_that_blew_up(self, tmp_path: Path) -> None:
        def change(step: int, values: dict[Key, float]) -> None:
            if step > 200:
                values[Key.scalar("loss")] = math.nan

        found = pace(
            make_paced(tmp_path / "run", change=change, status="failed", total_steps=1000)
        ).outlook
        assert found is not None
        assert (found.word, found.at, found.value) == ("unknown", None, None)


class TestRanks:
    def run(self, path: Path, step_s: list[float], data_s: list[float]) -> Path:
        columns = {
            Key("rank", str(rank), stat): [number] * 30
            for stat, numbers in (("step_s", step_s), ("data_s", data_s))
            for rank, number in enumerate(numbers)
        }
        return write_columns(path, columns)

    def test_the_slowest(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, [0.1, 0.1, 0.2, 0.1], [0.0, 0.0, 0.1, 0.0])
        found = pace(run).slowest_rank
        assert found is not None
        assert (found.num_ranks, found.rank) == (4, "2")
        assert found.slower_frac == pytest.approx(1.0)
        assert (found.data_rank, found.data_s) == ("2", pytest.approx(0.1))

    def test_one_rank_is_not_slow(self, tmp_path: Path) -> None:
        with open_run(self.run(tmp_path, [0.1], [0.0])) as history:
            assert slowest_rank(history) is None

    def test_a_rank_that_says_nothing(self, tmp_path: Path) -> None:
        found = pace(self.run(tmp_path, [0.1, 0.1, math.nan], [0, 0, math.nan])).slowest_rank
        assert found is not None
        assert found.num_ranks == 2


class TestOlderRuns:
    def test_without_any_of_the_columns(self, tmp_path: Path) -> None:
        found = pace(make_run(tmp_path))
        assert found.shares == {}
        assert found.evaluations == []
        for name in ("step_s", "steps_per_s", "mfu", "memory", "slowest_rank", "noise_scale"):
            assert getattr(found, name) is None, name
        assert found.progress.step == 40
        assert found.progress.step_s == pytest.approx(0.5)
        assert found.progress.total_steps is None

    def test_without_anything(self, tmp_path: Path) -> None:
        RunWriter.create(tmp_path, RunInfo(name="empty")).close()
        found = pace(tmp_path)
        assert found.outlook is None
        assert found.schedule is None
        assert found.progress.step is None

    def test_with_one_row(self, tmp_path: Path) -> None:
        with RunWriter.create(tmp_path, RunInfo(name="one", watch={"total_steps": 5})) as writer:
            writer.append(Row(1, START, (Key.scalar("loss"),), np.ones(1, dtype=np.float32)))
            writer.commit()
            found = pace(tmp_path)
        assert (found.progress.step, found.progress.eta_s) == (1, None)

    def test_columns_that_are_never_finite(self, tmp_path: Path) -> None:
        def change(_step: int, values: dict[Key, float]) -> None:
            for key in values:
                if key.kind in ("clock", "speed", "machine", "eval", "noise"):
                    values[key] = math.nan

        found = pace(make_paced(tmp_path / "run", change=change))
        assert found.shares == {}
        assert found.memory is None
        assert (found.steps_per_s, found.step_s, found.data_frac) == (None, None, None)
        json.loads(dumps(found))
