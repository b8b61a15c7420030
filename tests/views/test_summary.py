from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.views.made_runs import LAYERS, START, WEIGHTS, make_run, write_columns
from torchvitals.record import Key, Row, RunInfo
from torchvitals.store import RunWriter, open_run
from torchvitals.views import limits
from torchvitals.views.summary import RunSummary, summarize
from torchvitals.views.summary_text import command_words


def summary(path: Path, step: int | None = None) -> RunSummary:
    with open_run(path) as history:
        return summarize(history, step=step)


def test_what_the_run_is(tmp_path: Path) -> None:
    run = summary(make_run(tmp_path / "made"))
    assert (run.name, run.status, run.last_step, run.num_measured) == ("made", "finished", 40, 40)
    assert [(m.type, m.num_parameters, m.num_tensors) for m in run.models] == [("Net", 600, 6)]
    assert run.command == ["/usr/bin/python3", "train.py", "--name", "a b"]
    assert run.git["dirty"] is True
    assert run.num_frozen == run.num_vanishing == run.num_exploding == 0
    assert run.not_finite == []
    assert run.size_bytes == (tmp_path / "made" / "run.vitals").stat().st_size


def test_the_loss_first_last_and_best(tmp_path: Path) -> None:
    values = [5.0, 3.0, 1.5, 2.0]
    run = summary(write_columns(tmp_path, {Key.scalar("loss"): list(values)}))
    assert run.loss is not None
    assert (run.loss.first, run.loss.last) == (5.0, 2.0)
    assert (run.loss.low, run.loss.low_step, run.loss.num_bad) == (1.5, 2, 0)
    assert len(run.loss.spark) == 4


def test_a_loss_that_is_never_finite(tmp_path: Path) -> None:
    run = summary(write_columns(tmp_path, {Key.scalar("loss"): [math.nan, math.inf]}))
    assert run.loss is not None
    assert run.loss.low is None
    assert (run.loss.num_bad, run.loss.first_bad_step, run.loss.spark) == (2, 0, "××")


def test_any_loss_will_do_and_the_others_are_kept(tmp_path: Path) -> None:
    columns = {Key.scalar(name): [1.0, 0.5] for name in ("accuracy", "val/loss", "train/loss")}
    run = summary(write_columns(tmp_path, {**columns}))
    assert run.loss is not None
    assert run.loss.name == "val/loss"
    assert [one.name for one in run.scalars] == ["accuracy", "train/loss"]


def test_as_of_an_earlier_step(tmp_path: Path) -> None:
    run = summary(make_run(tmp_path), step=10)
    assert run.loss is not None
    assert run.loss.last == pytest.approx(4.0 / 2.0)
    assert run.loss.last_step == 10
    assert run.at_step == 10


def test_the_first_not_finite_tensor_is_found_in_a_long_run(tmp_path: Path) -> None:
    def change(step: int, values: dict[Key, float]) -> None:
        if step == 777:
            values[Key("gradient", WEIGHTS[3], "num_nan")] = 1.0
        if step >= 900:
            values[Key("gradient", WEIGHTS[1], "num_posinf")] = 5.0
        if step == 901:
            values[Key("activation", LAYERS[0], "num_nan")] = 1.0

    run = summary(make_run(tmp_path, steps=range(1, 1100), change=change))
    found = {bad.kind: bad for bad in run.not_finite}
    assert sorted(found) == ["activation", "gradient"]
    assert found["gradient"].num_sites == 2
    assert found["gradient"].first_step == 777
    assert found["gradient"].first_sites == [WEIGHTS[3]]
    assert found["activation"].first_step == 901


def test_the_monitors_share_counts_from_the_first_row_on(tmp_path: Path) -> None:
    # 40 rows half a second apart, 10 ms each: 39 × 10 ms in 19.5 s.
    run = summary(make_run(tmp_path))
    assert run.overhead_s == pytest.approx(0.01)
    assert run.overhead_frac == pytest.approx(39 * 0.01 / 19.5)


def test_a_run_without_rows(tmp_path: Path) -> None:
    RunWriter.create(tmp_path, RunInfo(name="empty")).close()
    run = summary(tmp_path)
    assert run.last_step is None
    assert run.loss is None
    assert run.gradient_norm is None
    assert run.overhead_frac is None


def test_attempts_add_up(tmp_path: Path) -> None:
    for first in (0, 5):
        with RunWriter.create(tmp_path, RunInfo(name="twice"), resume=True) as writer:
            for step in range(first, first + 10):
                row = Row(step, START, (Key.scalar("loss"),), np.ones(1, dtype=np.float32))
                writer.append(row)
    run = summary(tmp_path)
    assert run.num_attempts == 2
    assert run.last_step == 14


def test_the_live_half_counts_with_the_same_limits() -> None:
    from torchvitals.monitor import summary as live

    assert (limits.VANISHING, limits.EXPLODING) == (live.VANISHING, live.EXPLODING)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["/v/bin/python3", "/v/bin/vitals", "demo"], "vitals demo"),
        (["/v/bin/python3", "train.py", "--name", "a b"], "python3 train.py --name 'a b'"),
        (["/v/bin/python3", "/home/me/train.py"], "python3 /home/me/train.py"),
        (["python"], "python"),
    ],
)
def test_the_command_as_it_was_typed(command: list[str], words: str) -> None:
    assert command_words(command) == words
