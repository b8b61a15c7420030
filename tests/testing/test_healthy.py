"""Every healthy kind runs; those whose loss means something learn."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from torchvitals import open_run
from torchvitals.testing import HEALTHY, run_case


def test_all_sixteen_are_there() -> None:
    assert len(HEALTHY) == 16


# Odd seeds are another training there: Lion or Muon, dropout in M or C, LoRA, float16.
TWO_FOLD = (
    "h03-lion-or-muon",
    "h06-high-dropout",
    "h07-frozen-or-lora",
    "h16-accumulation-amp-resume",
)


@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, 0) for kind in HEALTHY] + [(kind, 1) for kind in TWO_FOLD]
)
def test_runs(kind: str, seed: int, tmp_path: Path) -> None:
    outcome = run_case(kind, seed, tmp_path / "run", steps=20)
    with open_run(tmp_path / "run") as history:
        assert history.status == "finished"
        assert history.last_step == 20
        assert not [e for e in history.events() if e.kind == "degraded"]
    assert outcome.case == kind
    assert outcome.onset is None
    assert math.isfinite(outcome.train_loss)


def test_a_resumed_run_has_two_attempts(tmp_path: Path) -> None:
    run_case("h16-accumulation-amp-resume", 1, tmp_path / "run", steps=20)
    with open_run(tmp_path / "run") as history:
        assert len(history.attempts) == 2
        assert history.series("loss").steps.tolist() == list(range(1, 21))


def test_the_regression_gets_exact(tmp_path: Path) -> None:
    outcome = run_case("h15-regression", 0, tmp_path / "run", steps=400)
    assert outcome.train_loss < 1e-6


def test_the_pole_stays_up_longer(tmp_path: Path) -> None:
    run_case("h11-actor-critic", 0, tmp_path / "run", steps=60)
    with open_run(tmp_path / "run") as history:
        rewards = history.series("reward").values
    assert rewards[-10:].mean() > 1.2 * rewards[:10].mean()
