"""The three example packages, used the way a user would."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.diagnosis import diagnose
from torchvitals.record import ConfigError
from torchvitals.record.plugins import PROBES, RULES, SINKS, plugin_names, plugins

pytestmark = pytest.mark.usefixtures("installed")


def train(path: Path, *, wait_s: float = 0.0, **options: object) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loader():
        for _ in range(6):
            time.sleep(wait_s)
            yield torch.randn(8, 6)

    with torchvitals.watch(
        model, optimizer, run=path, every=1, machine=False, **options
    ) as monitor:
        for batch in monitor.data(loader()):
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)
    return model


def test_they_are_found_by_their_entry_points() -> None:
    assert plugin_names(SINKS) == ["markdown"]
    assert plugin_names(PROBES) == ["spectral"]
    (rule,) = plugins(RULES, needs=("NAME", "check"))
    assert (rule.name, rule.package) == ("slow_data", "vitals-slow-data-rule")
    assert rule.thing.NAME == "slow_data"


def test_the_sink(tmp_path: Path) -> None:
    train(tmp_path / "gpt", sinks=[f"markdown:{tmp_path}/values.md"])
    text = (tmp_path / "values.md").read_text()
    assert text.startswith("### gpt at step 6\n")
    assert "| gradient/[root module]/norm | " in text
    assert torchvitals.open_run(tmp_path / "gpt").info.watch["sinks"] == ["a Markdown table"]


def test_the_probe(tmp_path: Path) -> None:
    model = train(tmp_path / "gpt", probes=["spectral"])
    history = torchvitals.open_run(tmp_path / "gpt")
    keys = [str(key) for key in history.keys("probe")]
    assert keys == ["probe/0.weight/spectral_norm", "probe/2.weight/spectral_norm"]
    steps, values = history.series(keys[0])
    assert steps.tolist() == [1, 2, 3, 4, 5, 6]
    exact = torch.linalg.matrix_norm(model[0].weight.detach(), ord=2)
    assert values[-1] == pytest.approx(exact.item(), rel=1e-5)
    assert history.info.watch["probes"] == ["spectral"]


def test_the_rule_judges_beside_the_training_and_afterwards(tmp_path: Path) -> None:
    train(tmp_path / "slow", wait_s=0.05)
    history = torchvitals.open_run(tmp_path / "slow")
    (live,) = [one for one in history.findings() if one.name == "slow_data"]
    found = diagnose(history)
    (after,) = [one for one in found.findings if one.name == "slow_data"]
    for one in (live, after):
        assert one.evidence[0].value > 0.5
        assert "DataLoader more workers" in one.fix
    (told,) = [one for one in found.to_json()["findings"] if one["name"] == "slow_data"]
    assert told["docs"] is None
    assert "slow_data" in {one.name for one in diagnose(history, at=4).not_checked}
    train(tmp_path / "unclocked", wait_s=0.05, clocks=False)
    quiet = diagnose(torchvitals.open_run(tmp_path / "unclocked"))
    assert "slow_data" not in {one.name for one in quiet.findings}


def test_the_command_knows_the_rule(site: Path, tmp_path: Path) -> None:
    """In a process of its own, as a user calls it."""
    train(tmp_path / "slow", wait_s=0.05)
    vitals = Path(sys.executable).parent / "vitals"
    said = [
        subprocess.run(
            [vitals, *arguments], env={**os.environ, "PYTHONPATH": str(site)}, cwd=tmp_path,
            capture_output=True, text=True, check=False,
        ).stdout
        for arguments in (["diagnose", "slow"], ["explain", "slow_data"], ["explain"])
    ]  # fmt: skip
    assert "waiting for data takes" in said[0]
    assert "A rule of the package vitals-slow-data-rule." in said[1]
    assert "slow_data" in said[2]


def test_an_unknown_name_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"known are console, csv, .*markdown, mlflow"):
        train(tmp_path / "run", sinks="markdwon")
    with pytest.raises(ConfigError, match="no probe named 'spectrum'; known: spectral"):
        train(tmp_path / "run", probes="spectrum")
    assert not (tmp_path / "run").exists()
