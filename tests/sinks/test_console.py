"""What is printed."""

import io
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import tqdm

from torchvitals.record import ConfigError, Event, Key, Row
from torchvitals.record.bins import NUM_BINS, bin_index
from torchvitals.record.row import HistogramRow
from torchvitals.sinks import Console

from .training import PARAMETERS, info, train


def console(every: int = 1, **options: int) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    sink = Console(every, file=out, **options)
    sink.open(info(), Path())
    return sink, out


def measured(step: int, ratios: list[float], *, frozen: float = 0, lr: float = 0.1) -> Row:
    numbers = {
        Key.scalar("loss"): 2.3125,
        Key("optimizer", "group0", "lr"): lr,
        Key("summary", "monitor", "overhead_s"): 0.001,
        Key("summary", "update_ratio", "num_frozen"): frozen,
        Key("summary", "largest_gradient.1", "parameter"): 2,
        Key("summary", "largest_gradient.1", "norm"): 12.5,
        Key("summary", "largest_gradient.2", "parameter"): 0,
        Key("summary", "largest_gradient.2", "norm"): 0.5,
        **{Key("update", name, "ratio"): r for name, r in zip(PARAMETERS, ratios, strict=True)},
        Key("update", "0", "ratio"): 5.0,
    }
    values = np.array(list(numbers.values()), dtype=np.float32)
    return Row(step, 0.0, tuple(numbers), values)


def test_summaries_come_every_so_many_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", "console:3", steps=7)
    printed = capsys.readouterr()
    heads = [line for line in printed.err.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in heads] == ["1", "3", "6"]
    assert "loss 0." in heads[0]
    assert "lr 0.0100" in heads[0]
    assert "gradient norm" in heads[0]
    assert "  largest gradients  2." in printed.err
    assert printed.out == ""


def test_only_what_is_wrong_is_named_and_the_worst_of_it() -> None:
    sink, out = console(top=1)
    sink.write(measured(1, [1e-3, 0.1234, 0.5, 8e-8]))
    assert out.getvalue().splitlines() == [
        "step 1  loss 2.31  lr 0.100",
        "  largest gradients  2.weight 12.5",
        "  update ratio of 2.weight is 0.500, above 0.1: lr may be too high",
        "  update ratio of 2.bias is 8.0e-08, below 1e-07: lr may be too low",
    ]


def test_a_healthy_step_is_two_lines() -> None:
    sink, out = console()
    sink.write(measured(1, [1e-3] * 4))
    assert len(out.getvalue().splitlines()) == 2


def test_frozen_parameters_are_named_unless_all_rest_on_purpose() -> None:
    sink, out = console()
    sink.write(measured(1, [1e-3, 0.0, 1e-3, 1e-3], frozen=1))
    assert "  1 parameters are frozen, for instance 0.bias" in out.getvalue()
    resting, quiet = console()
    resting.write(measured(1, [0.0] * 4, frozen=4, lr=0.0))
    assert "frozen" not in quiet.getvalue()


def test_distributions_of_the_worst_layers() -> None:
    sink, out = console(distributions_every=2)
    torch.manual_seed(0)
    values = torch.randn(20_000).double().numpy()
    counts = np.bincount(bin_index(values), minlength=NUM_BINS).astype(np.uint32)
    sink.histograms(HistogramRow(1, 0.0, (("gradient", "2.weight"),), counts[None]))
    sink.write(measured(1, [1e-3] * 4))
    assert "gradient of" not in out.getvalue()
    sink.write(measured(2, [1e-3] * 4))
    (line,) = [text for text in out.getvalue().splitlines() if "gradient of" in text]
    words = line.split()
    assert words[:3] == ["gradient", "of", "2.weight"]
    numbers = dict(zip(words[3::2], map(float, words[4::2]), strict=True))
    assert numbers["p75"] == pytest.approx(np.percentile(values, 75), rel=0.05)
    assert numbers["p25"] == pytest.approx(np.percentile(values, 25), rel=0.05)
    assert numbers["min"] < numbers["p25"] < numbers["median"] < numbers["p95"] < numbers["max"]


def test_findings_are_printed_as_they_come() -> None:
    sink, out = console()
    error = {"severity": "error"}
    sink.event(Event(5, 0.0, "finding", "loss is NaN", {"state": "opened", "finding": error}))
    sink.event(Event(6, 0.0, "finding", "loss is NaN", {"state": "updated", "finding": error}))
    sink.event(
        Event(7, 0.0, "finding", "so so", {"state": "opened", "finding": {"severity": "info"}})
    )
    sink.event(Event(8, 0.0, "epoch", "epoch 2 begins", {}))
    sink.event(Event(9, 0.0, "guard", "step skipped", {}))
    assert out.getvalue().splitlines() == [
        "step 5  finding opened: loss is NaN",
        "step 9  guard: step skipped",
    ]


def test_progress_bars_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """The bar is taken away, the lines printed, the bar drawn again."""
    sink = Console(1)
    sink.open(info(), Path())
    with tqdm.tqdm(total=10, ncols=40, mininterval=0) as bar:
        bar.update(3)
        sink.write(measured(1, [1e-3] * 4))
        bar.update(1)
    text = capsys.readouterr().err
    at = text.index("step 1  loss")
    assert text[:at].endswith(("\r", "\x1b[A"))
    after = text[text.index("\n", text.index("largest gradients")) :]
    assert "30%" in after


def test_arguments_are_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="every must be at least 1, got 0"):
        Console(0)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
