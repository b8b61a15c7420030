"""The benchmark of injected faults: what it picks, keeps, follows and prints."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from faults import fixes, places
from faults.fixes import recommended, rerun_fixes
from faults.judging import harms
from faults.places import Place, chosen, train
from faults.pool import pooled
from faults.tables import show_score, show_table
from torchvitals.record.finding import Finding, Severity
from torchvitals.testing import CASES, run_case
from torchvitals.testing.scoring import judge, score


def finding(name: str, **more: object) -> Finding:
    return Finding(
        name=name, severity=Severity.WARNING, sites=("a",), first_step=1, last_step=2,
        evidence=(), explanation="…", **more,
    )  # fmt: skip


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "run_case", functools.partial(run_case, steps=20))


def test_a_case_comes_with_its_clean_one() -> None:
    assert [case.key for case in chosen(["14"])] == ["clean-M", "14-model-swapped-M"]
    assert [case.key for case in chosen(["beta2-and-shift"])] == [
        "clean-22-G",
        "22-beta2-and-shift-G",
    ]
    assert len(chosen([])) == len(CASES)
    with pytest.raises(SystemExit, match="nonsense"):
        chosen(["nonsense"])


def test_a_run_is_trained_once(tmp_path: Path, short: None) -> None:
    place = Place(tmp_path, "14-model-swapped-M", 0)
    assert place.outcome() is None
    first = train(place)
    file = next(place.run.iterdir())
    stamp = file.stat().st_mtime_ns
    assert train(place) == first == place.outcome()
    assert file.stat().st_mtime_ns == stamp


def test_harm_is_against_the_clean_run_of_the_seed(tmp_path: Path, short: None) -> None:
    places = [Place(tmp_path, key, 0) for key in ("clean-M", "14-model-swapped-M")]
    for place in places:
        train(place)
    lost = harms(places)
    assert lost[places[0]] is None
    assert "accuracy" in (lost[places[1]] or "")


def test_the_first_finding_is_followed() -> None:
    place = Place(Path(), "01-lr-times-100-M", 0)
    lower = {"lr": {"from": 1.0, "to": 0.1}}
    assert recommended([finding("plateau"), finding("lr_too_high", change=lower)], place) == lower
    clip = {"clip_norm": {"to": 1.0}}
    assert recommended([finding("plateau", change=clip), finding("lr_too_high")], place) == clip
    assert recommended([finding("plateau")], place) == {}


def test_a_right_change_repairs_and_a_wrong_one_does_not(tmp_path: Path, short: None) -> None:
    sick = Place(tmp_path, "01-lr-times-100-M", 0)
    train(Place(tmp_path, "clean-M", 0))
    rate = train(sick).settings["lr"]
    for factor, fixed in ((0.01, True), (1.5, False)):
        told = [finding("lr_too_high", change={"lr": {"from": rate, "to": rate * factor}})]
        verdict = judge(
            told, case=sick.case, seed=0, right=("lr_too_high",), harm="worse", fault=1,
            numeric_fix=True,
        )  # fmt: skip
        verdicts = {sick: verdict}
        # In this process: the patched length must be seen.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                fixes,
                "pooled",
                lambda _jobs, _what, function, tasks: ((t, function(*t)) for t in tasks),
            )
            rerun_fixes(verdicts, {sick: [each.to_json() for each in told]}, 1)
        assert verdicts[sick].fixed is fixed


def test_the_table_shows_faults_and_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [
        judge([finding("lr_too_high")], case="01-lr-times-100-M", seed=0, right=("lr_too_high",),
              harm="worse", fault=1),
        judge([finding("plateau")], case="clean-M", seed=0),
    ]  # fmt: skip
    show_table(verdicts)
    show_score(score(verdicts), "tune")
    printed = capsys.readouterr().out
    assert "01-lr-times-100-M" in printed
    assert "plateau 1" in printed
    assert "tune: 1 sick runs, 1 healthy ones" in printed
    assert "alarms_on_healthy     1.000   (goal <= 0.1)  MISSED" in printed


def test_tasks_are_told_one_by_one_and_failures_too(capfd: pytest.CaptureFixture[str]) -> None:
    good, bad = Place(Path(), "clean-M", 0), Place(Path(), "no-such-case", 1)
    found = dict(pooled(2, "looked at", harms_of, [(good,), (bad,)]))
    assert found == {(good,): "clean-M"}
    out, err = capfd.readouterr()
    assert "/2]  looked at clean-M seed 0\n" in out
    assert "looked at no-such-case seed 1 FAILED: KeyError('no-such-case')" in out
    assert err == "1 of 2 failed.\n"


def harms_of(place: Place) -> str:
    return CASES[place.case].key


def test_the_folder_is_a_program() -> None:
    folder = Path(__file__).parents[2] / "bench" / "faults"
    done = subprocess.run(
        [sys.executable, folder, "--list"], capture_output=True, text=True, check=True
    )
    assert "14-model-swapped-M" in done.stdout
