"""The bases learn, differ by seed, and are the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchvitals import open_run
from torchvitals.testing import run_case
from torchvitals.testing.bases import BASES

STEPS = {"M": 60, "C": 60, "G": 80, "R": 80}


@pytest.mark.parametrize("letter", BASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_falls(letter: str, seed: int, tmp_path: Path) -> None:
    outcome = run_case(f"clean-{letter}", seed, tmp_path / "run", steps=STEPS[letter])
    with open_run(tmp_path / "run") as history:
        losses = history.series("loss").values
        assert history.series("eval/val/loss").steps.tolist() == [STEPS[letter] // 2, STEPS[letter]]
        assert history.status == "finished"
    assert len(losses) == STEPS[letter]
    assert losses[-8:].mean() < 0.85 * losses[:4].mean()
    assert outcome.train_loss == pytest.approx(losses[-(STEPS[letter] // 10) :].mean(), rel=1e-4)


@pytest.mark.parametrize("letter", BASES)
def test_settings_vary_with_the_seed(letter: str) -> None:
    drawn = [BASES[letter].settings(seed) for seed in range(8)]
    assert len({s.lr for s in drawn}) == 8
    assert len({s.batch_size for s in drawn}) > 1
    assert len({s.width for s in drawn}) > 1


def test_same_seed_same_run(tmp_path: Path) -> None:
    first = run_case("clean-M", 3, tmp_path / "a", steps=12)
    again = run_case("clean-M", 3, tmp_path / "b", steps=12)
    other = run_case("clean-M", 4, tmp_path / "c", steps=12)
    assert first.train_loss == again.train_loss != other.train_loss


@pytest.mark.parametrize("letter", BASES)
def test_splits_do_not_overlap(letter: str) -> None:
    base = BASES[letter]
    data = base.data(base.settings(0))
    # Windows of a text may repeat; points, pictures and signals may not.
    if letter != "G":
        train = {tuple(x.flatten()[:32].tolist()) for x in data.train.inputs}
        assert len(train) == len(data.train.inputs)
        assert not any(tuple(x.flatten()[:32].tolist()) in train for x in data.test.inputs)
    assert int(data.train.targets.max()) < data.num_classes
