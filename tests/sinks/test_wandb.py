"""W&B offline: its file, read back record by record."""

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb

from torchvitals.sinks import WandB

from .training import train
from .wandb_file import history, metrics


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of the developer's own W&B is looked at."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    yield
    wandb.teardown()


def written(folder: Path) -> Path:
    wandb.teardown()  # its process writes what it still holds
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    return path


def test_a_run_of_our_own_is_offline_where_nobody_is_logged_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    losses = train(tmp_path / "run", [WandB("proj", series="^parameter/.*/norm$")])
    rows = history(written(tmp_path / "run"))
    logged = [row for row in rows if "Loss/train" in row]
    assert [row["vitals/step"] for row in logged] == [1, 2, 3, 4, 5, 6]
    assert [row["Loss/train"] for row in logged] == pytest.approx(losses)
    assert "Parameters/per_layer/0.weight/norm" in logged[0]
    drawn = next(row for row in rows if any(name.startswith("Gradients_Hist/") for name in row))
    site = next(name for name in drawn if name.startswith("Gradients_Hist/")).partition(":")[0]
    assert drawn[f"{site}:_type"] == "histogram"
    assert len(drawn[f"{site}:bins"]) == len(drawn[f"{site}:values"]) + 1
    assert sum(drawn[f"{site}:values"]) > 0
    assert metrics(written(tmp_path / "run"))["*"] == "vitals/step"
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert "'wandb login' and 'wandb sync' upload it" in told
    assert wandb.run is None


def test_the_users_run_keeps_its_own_steps(tmp_path: Path) -> None:
    with wandb.init(project="mine", mode="offline", dir=tmp_path) as mine:
        train(tmp_path / "run", ["wandb"])
        for step in (10, 20):
            mine.log({"mine": float(step)}, step=step)
        assert wandb.run is mine  # it is still going on
    rows = history(written(tmp_path))
    assert [row["mine"] for row in rows if "mine" in row] == [10.0, 20.0]
    assert [row["_step"] for row in rows if "mine" in row] == [10, 20]
    ours = [row for row in rows if "vitals/Loss/train" in row]
    assert [row["vitals/step"] for row in ours] == [6]
    assert not (tmp_path / "run" / "wandb").exists()


def test_what_the_program_prints_is_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout.write
    train(tmp_path / "run", [WandB(mode="offline")])
    assert sys.stdout.write == before
    printed = capsys.readouterr()
    assert printed.out == printed.err == ""
