from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from torchvitals.record import ConfigError
from torchvitals.rules.catalogue import NAMES
from torchvitals.rules.thresholds import Thresholds, from_pyproject, parse_option

from .builder import RunBuilder


def test_every_threshold_belongs_to_rules_and_says_what_it_means() -> None:
    for limit in fields(Thresholds):
        assert limit.metadata["about"]
        assert set(limit.metadata["rules"]) <= set(NAMES)


def test_every_threshold_is_used_by_its_rules() -> None:
    folder = Path(__file__).parents[2] / "src" / "torchvitals" / "rules"
    for limit in fields(Thresholds):
        for name in limit.metadata["rules"]:
            assert f"limits.{limit.name}" in (folder / f"{name}.py").read_text(), (limit.name, name)


def test_rules_use_no_threshold_that_is_not_listed_for_them() -> None:
    folder = Path(__file__).parents[2] / "src" / "torchvitals" / "rules"
    for name in NAMES:
        text = (folder / f"{name}.py").read_text()
        for limit in fields(Thresholds):
            if f"limits.{limit.name} " in text or f"limits.{limit.name})" in text:
                assert name in limit.metadata["rules"], (name, limit.name)


def test_unknown_name_names_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"no threshold 'dead_shar'. Did you mean dead_share\?"):
        Thresholds().with_changes({"dead_shar": 1})


@pytest.mark.parametrize("value", ["much", None, True])
def test_a_threshold_is_a_number(value: object) -> None:
    with pytest.raises(ConfigError, match="dead_share must be a number"):
        Thresholds().with_changes({"dead_share": value})


def test_whole_numbers_stay_whole() -> None:
    assert Thresholds().with_changes({"spike_window": 64.0}).spike_window == 64
    with pytest.raises(ConfigError, match="whole number"):
        Thresholds().with_changes({"spike_window": 6.5})


def test_pyproject_is_found_upward_and_keywords_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.torchvitals.thresholds]\ndead_share = 0.7\nloss_spike = 20\n"
    )
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    made = Thresholds.make({"loss_spike": 30.0})
    assert (made.dead_share, made.loss_spike) == (0.7, 30.0)
    assert Thresholds.make(Thresholds(dead_share=0.9)).dead_share == 0.9


def test_a_broken_pyproject_is_not_ours_to_complain_about(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.")
    assert from_pyproject(tmp_path) == {}


def test_an_unknown_name_in_pyproject_is_told(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.torchvitals.thresholds]\nlossspike = 2\n")
    with pytest.raises(ConfigError, match="Did you mean loss_spike"):
        Thresholds.make(folder=tmp_path)


def test_options_of_a_command_line() -> None:
    assert parse_option("dead_share=0.7") == ("dead_share", 0.7)
    for wrong in ("dead_share", "dead_share=x", "=1"):
        if wrong == "=1":
            with pytest.raises(ConfigError):
                Thresholds().with_changes(dict([parse_option(wrong)]))
        else:
            with pytest.raises(ConfigError, match="name=number"):
                parse_option(wrong)


def test_a_threshold_changes_the_verdict(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.each("activation/{}/dead_frac", 0.6, builder.acts)
    assert builder.check("dead_units") is not None
    assert builder.check("dead_units", dead_share=0.7) is None
