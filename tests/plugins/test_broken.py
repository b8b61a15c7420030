"""A plugin that is broken is told once and left out; the training does not notice."""

import logging
from pathlib import Path

import pytest
import torch

import torchvitals
from torchvitals.diagnosis import diagnose
from torchvitals.record import ConfigError, Key
from torchvitals.rules.plugged import plugged
from torchvitals.store import open_run

from .test_examples import train


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("group", ["sinks", "probes"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("absent", "No module named 'vitals_nowhere'"),
        ("raises", "OSError: no licence"),
        ("mute", "measure|write"),
    ],
)
def test_it_is_told_once_and_left_out(
    group: str, name: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(2):
        train(tmp_path / f"run{number}", **{group: [name]})
    (text,) = told(caplog)
    assert f"the plugin {name} of vitals-broken (torchvitals.{group}) is left out" in text
    assert any(part in text for part in why.split("|"))
    assert torchvitals.open_run(tmp_path / "run1").series("loss").steps.tolist() == list(
        range(1, 7)
    )


@pytest.mark.usefixtures("broken_rules", "installed")
def test_broken_rules_do_not_hide_good_ones(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert [rule.name for rule in plugged()] == ["slow_data", "wrong"]
    first, second, third = told(caplog)
    assert "the plugin absent" in first
    assert "it has no NAME and no check" in second
    assert "there is a rule named plateau already" in third


@pytest.mark.usefixtures("broken_rules")
def test_a_rule_that_fails_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHVITALS_STRICT")
    train(tmp_path / "run")
    unchecked = {one.name: one.reason for one in diagnose(open_run(tmp_path / "run")).not_checked}
    assert unchecked["wrong"].endswith("must return a Finding or None, got 'all is well'")


@pytest.mark.usefixtures("broken")
def test_a_probe_that_can_not_begin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path / "run", probes="late")
    (text,) = told(caplog)
    assert "OSError: no device" in text


@pytest.mark.usefixtures("broken")
def test_a_probe_that_fails_midway_is_switched_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHVITALS_STRICT")
    train(tmp_path / "run", probes="midway")
    (text,) = told(caplog)
    assert "measuring midway failed" in text
    assert "must return {Key: number}, got 'not a key' as a key" in text
    history = torchvitals.open_run(tmp_path / "run")
    assert history.series("loss").steps.tolist() == [1, 2, 3, 4, 5, 6]
    (event,) = history.events("degraded")
    assert event.data["probe"] == "midway"


class Draws:
    """Uses random numbers and wants gradients: neither may matter."""

    NAME = "draws"

    def __init__(self) -> None:
        self.closed = False

    def measure(self, step: int) -> dict[Key, object]:
        assert not torch.is_grad_enabled()
        return {Key("probe", "run", "noise"): torch.randn(1), Key("probe", "run", "step"): step}

    def close(self) -> None:
        self.closed = True


def test_an_object_of_ones_own_and_the_training_is_the_same(tmp_path: Path) -> None:
    probe = Draws()
    one = train(tmp_path / "with", probes=[probe])
    other = train(tmp_path / "without")
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    history = torchvitals.open_run(tmp_path / "with")
    assert history.series("probe/run/step").values.tolist() == [1, 2, 3, 4, 5, 6]
    assert probe.closed


@pytest.mark.parametrize("given", [7, Draws])
def test_what_is_no_probe_is_refused(given: object, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a probe is a name or an object with measure"):
        train(tmp_path / "run", probes=given)
    assert not (tmp_path / "run").exists()
