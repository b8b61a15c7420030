"""Each rule fires on a run made sick in one place, and is silent on its healthy counterpart."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchvitals.diagnosis import diagnose
from torchvitals.record import Finding
from torchvitals.rules.catalogue import NAMES, rules
from torchvitals.rules.rule import NotChecked
from torchvitals.rules.run import Run
from torchvitals.rules.thresholds import Thresholds

from .builder import RunBuilder
from .sick import CASES, Case


class Died:
    """A stored run whose process is gone."""

    def __init__(self, history: object) -> None:
        self._history = history
        self.status = "died"

    def __getattr__(self, name: str) -> object:
        return getattr(self._history, name)


def made(case: Case, path: Path, *, sick: bool) -> RunBuilder:
    builder = RunBuilder(path, **case.make)
    case.prepare(builder)
    if sick:
        case.spoil(builder)
    return builder


def verdict(name: str, builder: RunBuilder, status: str = "finished") -> Finding | None:
    one = next(rule for rule in rules() if rule.name == name)
    with builder.open() as history:
        run = Run(Died(history) if status == "died" else history)  # type: ignore[arg-type]
        assert one.missing(run) is None
        return one.check(run, Thresholds())


def test_there_is_a_case_for_every_rule() -> None:
    assert sorted(CASES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_rule_fires_on_its_ailment(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    found = verdict(name, made(case, tmp_path / "run", sick=True), case.status)
    assert found is not None
    assert found.name == name
    assert found.severity.value == case.severity
    if case.site is not None:
        assert found.sites[0] == case.site
    if case.step is not None:
        assert found.first_step == case.step
    assert found.first_step <= found.last_step
    assert found.evidence
    assert all(each.text for each in found.evidence)
    assert any(each.value is not None for each in found.evidence)
    assert len(found.causes) >= 2
    ranked = [cause.confidence for cause in found.causes]
    assert ranked == sorted(ranked, reverse=True)
    assert len({cause.test for cause in found.causes}) == len(found.causes)
    assert found.explanation.endswith((".", ")"))
    assert found.fix
    assert 0 < found.confidence <= 1
    assert Finding.from_json(found.to_json()) == found


@pytest.mark.parametrize("name", NAMES)
def test_rule_is_silent_on_the_healthy_counterpart(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    try:
        assert verdict(name, made(case, tmp_path / "run", sick=False)) is None
    except NotChecked as reason:
        pytest.fail(f"it could not judge: {reason}")


@pytest.mark.parametrize("name", NAMES)
def test_no_rule_raises_on_a_healthy_or_empty_run(name: str, tmp_path: Path) -> None:
    """TORCHVITALS_STRICT lets errors through; short runs are the hard ones."""
    case = CASES[name]
    short = RunBuilder(tmp_path / "short", **{**case.make, "steps": 2})
    case.prepare(short)
    case.spoil(short)
    with short.open() as history:
        diagnose(history)
    sick = made(case, tmp_path / "sick", sick=True)
    with sick.open() as history:
        found = diagnose(history)
        assert name == "stalled" or name in {
            each.name for one in found.findings for each in (one, *one.symptoms)
        }


def test_a_healthy_run_has_no_findings(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", steps=400)
    builder["loss"] = lambda t: 2.3 * (1 + t / 20) ** -0.5
    with builder.open() as history:
        found = diagnose(history)
    assert [one.name for one in found.findings] == []
    assert found.not_checked
    assert all(one.reason for one in found.not_checked)


def test_no_rule_looks_beyond_the_cut(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    CASES["non_finite"].spoil(builder)
    with builder.open() as history:
        assert diagnose(history, at=59).findings == ()
        assert diagnose(history, at=59).steps == 59
        assert diagnose(history, at=60).findings[0].name == "non_finite"
