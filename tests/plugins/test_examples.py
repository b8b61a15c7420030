"""The three example packages, used the way a user would."""

import time
from pathlib import Path

import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.record import ConfigError, Finding
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


def test_the_rule(tmp_path: Path) -> None:
    (rule,) = plugins(RULES, needs=("NAME", "check"))
    train(tmp_path / "slow", wait_s=0.05)
    found = rule.thing.check(torchvitals.open_run(tmp_path / "slow"), None)
    assert isinstance(found, Finding)
    assert found.name == "slow_data"
    assert found.evidence[0].value > 0.5
    assert Finding.from_json(found.to_json()) == found
    train(tmp_path / "short", probes=None)
    run = torchvitals.open_run(tmp_path / "short")
    assert rule.thing.LEAST == 5
    assert len(run.series("clock/step/wall_s").steps) >= 5


def test_an_unknown_name_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"known are console, csv, .*markdown, mlflow"):
        train(tmp_path / "run", sinks="markdwon")
    with pytest.raises(ConfigError, match="no probe named 'spectrum'; known: spectral"):
        train(tmp_path / "run", probes="spectrum")
    assert not (tmp_path / "run").exists()
