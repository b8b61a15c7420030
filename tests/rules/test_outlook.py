"""What the forecast and the validation series add to the advice; when rules fire stays theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.rules.builder import RunBuilder
from torchvitals.curves import forecast
from torchvitals.record import Finding
from torchvitals.rules import outlook as room
from torchvitals.rules.run import LINE_POINTS, Run
from torchvitals.rules.thresholds import Thresholds

NOISE = np.random.default_rng(3).normal(0, 1, 100_000)


def settled(t: int) -> float:
    """Falls early, and is flat beyond its noise from a third of the run on."""
    return float(0.8 + 1.5 * 0.97**t + 0.004 * NOISE[t])


def crawling(t: int) -> float:
    """So slow and noisy that a fifth of the run shows no change, and the whole of it does."""
    return float(2.0 * (1 + t / 60) ** -0.25 + 0.2 * NOISE[t])


def plateau(
    path: Path,
    loss: Callable[[int], float],
    *,
    evals: dict[int, float] | None = None,
    steps: int = 600,
    total_steps: int | None = None,
) -> Finding:
    builder = RunBuilder(path, steps=steps, total_steps=total_steps, every=10)
    builder["loss"] = loss
    if evals:
        builder.evals(evals)
    found = builder.check("plateau")
    assert found is not None
    assert found.severity == "info"
    assert found.change["lr"] == {"from": pytest.approx(1e-3), "to": 3e-4}
    return found


def test_a_forecast_without_a_gain_says_stop(tmp_path: Path) -> None:
    found = plateau(tmp_path / "run", settled, total_steps=2000)
    assert found.fix == (
        "stop here, or lower lr from 1e-3 to 3e-4: as it is the forecast sees less than 2 % to "
        "gain by step 2,000"
    )
    (text,) = [one for one in found.evidence if one.text.startswith("forecast: ")]
    assert text.text.startswith("forecast: the loss will stay at 0.8 (")
    assert text.text.endswith(") until its last step, 2,000")
    assert text.step == 2000
    # As asked of the forecast itself.
    steps = np.arange(1, 601)
    ahead = forecast(steps, np.array([settled(t) for t in steps], np.float32), 2000)
    assert text.value == pytest.approx(ahead.value, rel=1e-6)
    assert found.explanation.endswith(f"The {text.text}.")


def test_a_forecast_with_a_gain_says_go_on(tmp_path: Path) -> None:
    found = plateau(tmp_path / "run", crawling, total_steps=2000)
    assert "The forecast: the loss will get from 1.13 to 1 (" in found.explanation
    assert found.fix == (
        "lower lr from 1e-3 to 3e-4, or go on: the forecast sees more than 2 % to gain by step "
        "2,000"
    )


@pytest.mark.parametrize("total_steps", [None, 600])
def test_without_planned_steps_it_looks_as_far_again(
    tmp_path: Path, total_steps: int | None
) -> None:
    found = plateau(tmp_path / "run", settled, total_steps=total_steps)
    assert found.fix.endswith("less than 2 % to gain in as many steps again")
    assert "in as many steps again, until step 1,199" in found.explanation


def test_a_validation_loss_that_falls_is_a_reason_to_go_on(tmp_path: Path) -> None:
    evals = {t: 1.0 - t / 1000 for t in range(100, 601, 100)}
    found = plateau(tmp_path / "run", settled, evals=evals)
    assert found.fix == "lower lr from 1e-3 to 3e-4, or go on: the validation loss still falls"
    assert "the validation loss was best at step 600 (0.4), and still falls" in [
        one.text for one in found.evidence
    ]


def test_the_checkpoint_that_was_best_on_validation_is_named(tmp_path: Path) -> None:
    evals = {t: 1.0 + abs(t - 300) / 5000 for t in range(100, 601, 100)}
    found = plateau(tmp_path / "run", settled, evals=evals)
    assert found.fix.startswith("stop, and take the checkpoint of step 300, or lower lr")
    assert "the validation loss was best at step 300 (1), 3 evaluations ago" in [
        one.text for one in found.evidence
    ]


def test_too_far_ahead_is_told_as_such(tmp_path: Path) -> None:
    found = plateau(tmp_path / "run", settled, total_steps=100_000)
    assert found.evidence[1].text == (
        "where it goes from here can't be forecast: extrapolates 167× beyond what was seen"
    )
    assert found.fix == "lower lr from 1e-3 to 3e-4, or stop here"


def test_what_can_not_be_forecast_is_told_as_such(tmp_path: Path) -> None:
    """A step down: no single law fits it, and the advice is as it was."""

    def stairs(t: int) -> float:
        return float((2.0 if t < 300 else 1.0) + 0.02 * NOISE[t])

    found = plateau(tmp_path / "run", stairs)
    assert found.fix == "lower lr from 1e-3 to 3e-4, or stop here"
    assert found.evidence[1].text.endswith("not on the curve that fits the rest of it")
    assert "forecast" not in found.explanation


def test_nothing_learned_has_the_forecast_too(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", steps=300, total_steps=1000)
    builder["loss"] = lambda t: 2.3 * (1 + 0.01 * NOISE[t])
    found = builder.check("plateau")
    assert found is not None
    assert found.severity == "error"
    assert "The forecast: the loss will stay at 2.3 (" in found.explanation
    assert found.change["lr"]["to"] == 3e-3


@pytest.mark.parametrize(("status", "said"), [
    ("finished", "take the checkpoint of step 40, the best on validation, and stop there next "
                 "time"),
    ("running", "stop now and take the checkpoint of step 40, the best on validation"),
])  # fmt: skip
def test_overfitting_names_the_checkpoint(tmp_path: Path, status: str, said: str) -> None:
    builder = RunBuilder(tmp_path / "run", total_steps=1000)
    builder.evals({t: 1.0 + 0.02 * abs(t - 40) for t in range(10, 121, 10)})
    found = builder.check("overfitting", at=None if status == "finished" else 120)
    assert found is not None
    assert (found.severity, found.first_step) == ("warning", 40)
    assert found.fix == f"{said}, or use weight decay 0.1 and dropout 0.1 … 0.3"
    assert "forecast" in found.evidence[2].text
    assert found.change == {"max_steps": {"from": 120, "to": 40}}


def test_known_by_heart_names_the_checkpoint(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", steps=400)
    builder["loss"] = lambda t: 1.8 * 0.95**t + 1e-4
    builder.evals({step: 1.2 + 0.1 * (step != 100) for step in range(50, 401, 50)})
    found = builder.check("overfitting")
    assert found is not None
    assert "otherwise take the checkpoint of step 100, the best on validation, and" in found.fix


def test_no_forecast_where_no_rule_fires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def counted(steps: object, values: object, at: float, **_: object) -> None:
        asked.append(at)

    monkeypatch.setattr(room, "forecast", counted)
    builder = RunBuilder(tmp_path / "run", steps=200)
    builder.evals({t: 1.0 - t / 400 for t in range(20, 201, 20)})
    assert builder.check("plateau") is None
    assert builder.check("overfitting") is None
    assert asked == []


def test_peaks_that_long_runs_keep_do_not_lift_the_forecast(tmp_path: Path) -> None:
    """Rules read a thinned line with every peak in it; the forecast reads all of the loss."""
    num = 2 * LINE_POINTS
    noise = np.random.default_rng(5).normal(0, 0.1, num + 1)
    builder = RunBuilder(tmp_path / "run", steps=num, every=1000)
    builder["loss"] = lambda t: 1.0 + 2.0 * (1 + t / 50) ** -0.7 + noise[t]
    with builder.open() as history:
        found = room.outlook(Run(history), Thresholds().outlook_off)
    assert found.now == pytest.approx(1.0 + 2.0 * (1 + num / 50) ** -0.7, abs=0.01)
