"""`vitals diagnose` and `vitals explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Vitals
from tests.rules.builder import RunBuilder
from tests.rules.sick import CASES
from torchvitals.rules.catalogue import NAMES


@pytest.fixture
def sick(tmp_path: Path) -> str:
    builder = RunBuilder(tmp_path / "sick")
    CASES["non_finite"].spoil(builder)
    builder.write()
    return str(tmp_path / "sick")


@pytest.fixture
def well(tmp_path: Path) -> str:
    builder = RunBuilder(tmp_path / "well")
    builder["loss"] = lambda t: 2.3 * (1 + t / 20) ** -0.5
    builder.write()
    return str(tmp_path / "well")


def test_an_error_exits_with_1_and_fits_a_screen(run: Vitals, sick: str) -> None:
    done = run("diagnose", sick)
    assert done.exit_code == 1
    assert "✗ error  non_finite  layers.2" in done.output
    assert "since step 60" in done.output
    assert "→ " in done.output
    assert "Not checked" in done.output
    assert len(done.output.splitlines()) <= 50
    assert max(map(len, done.output.splitlines())) <= 100


def test_a_healthy_run_exits_with_0(run: Vitals, well: str) -> None:
    done = run("diagnose", well)
    assert done.exit_code == 0
    assert "nothing wrong was found" in done.output
    assert "Not checked" in done.output


def test_json_is_one_object_as_documented(run: Vitals, sick: str) -> None:
    done = run("diagnose", sick, "--json")
    assert done.exit_code == 1
    found = json.loads(done.output)
    assert list(found) == ["run", "status", "steps", "findings", "not_checked"]
    assert (found["run"], found["status"], found["steps"]) == ("sick", "finished", 120)
    first = found["findings"][0]
    assert first["name"] == "non_finite"
    assert {
        *("name", "severity", "sites", "first_step", "last_step", "evidence", "explanation"),
        *("causes", "fix", "change", "confidence", "symptoms", "docs"),
    } <= set(first)
    assert first["docs"] == "docs/rules/non_finite.md"
    assert all(set(one) == {"name", "reason"} for one in found["not_checked"])


def test_at_a_step_before_it_nothing_was_wrong(run: Vitals, sick: str) -> None:
    done = run("diagnose", sick, "--at", "50", "--json")
    assert done.exit_code == 0
    assert json.loads(done.output)["steps"] == 50


def test_a_threshold_of_the_command_line(run: Vitals, tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "dead")
    builder["loss"] = lambda t: 2.3 * (1 + t / 20) ** -0.5
    builder.each("activation/{}/dead_frac", 0.6, builder.acts)
    builder.write()
    path = str(tmp_path / "dead")
    assert "dead_units" in run("diagnose", path).output
    assert "! warning" not in run("diagnose", path, "--threshold", "dead_share=0.7").output
    wrong = run("diagnose", path, "--threshold", "dead_shar=0.7")
    assert wrong.exit_code == 2
    assert "Did you mean dead_share?" in wrong.stderr


def test_explain_prints_every_page(run: Vitals) -> None:
    for name in NAMES:
        done = run("explain", name)
        assert done.exit_code == 0
        assert f"`{name}`" in done.output
    listed = run("explain").output.splitlines()
    assert [line.split()[0] for line in listed] == list(NAMES)
    assert len(json.loads(run("explain", "--json").output)) == len(NAMES)
    assert "# Dead units" in json.loads(run("explain", "dead_units", "--json").output)["page"]


def test_explain_names_the_closest(run: Vitals) -> None:
    done = run("explain", "dead_unit")
    assert done.exit_code == 2
    assert "Did you mean dead_units" in done.stderr
