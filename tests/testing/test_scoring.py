"""Scoring, on findings made up for it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from torchvitals.record.finding import Finding, Severity
from torchvitals.testing.scoring import Verdict, judge, score


def finding(
    name: str, severity: str = "warning", step: int = 10, symptoms: tuple[Finding, ...] = ()
) -> Finding:
    return Finding(
        name=name, severity=Severity(severity), sites=("[root module]",), first_step=step,
        last_step=step + 5, evidence=(), explanation="…", symptoms=symptoms,
    )  # fmt: skip


def verdict(
    *findings: Finding, right: tuple[str, ...] = ("dead_units",), **more: object
) -> Verdict:
    given: dict[str, object] = {"case": "c", "seed": 0, "harm": "worse", "fault": 9, "onset": 5}
    return judge(list(findings), right=right, **{**given, **more})  # type: ignore[arg-type]


def test_nothing_found() -> None:
    assert not verdict().found
    assert verdict().rank is None


def test_info_does_not_count() -> None:
    told = verdict(finding("dead_units", "info"))
    assert (told.found, told.rank, told.num_warnings) == (False, None, 0)
    assert verdict(finding("plateau", "info"), finding("dead_units")).rank == 1


def test_rank_and_equivalents() -> None:
    told = verdict(
        finding("plateau"), finding("bad_init", "error"), right=("dead_units", "bad_init")
    )
    assert (told.rank, told.num_errors, told.num_warnings) == (2, 1, 1)


def test_a_symptom_counts_for_its_cause_only() -> None:
    told = verdict(finding("plateau", symptoms=(finding("dead_units"),)))
    assert told.names == ("plateau",)
    assert told.rank is None


def test_delay_is_that_of_the_right_finding() -> None:
    told = verdict(finding("plateau", step=6), finding("dead_units", step=30), onset=25)
    assert told.delay == 5
    assert verdict(finding("dead_units", step=3)).delay == 0
    assert verdict(finding("dead_units"), raised_at=45).live_delay == 40


def test_score() -> None:
    sick = [
        verdict(finding("dead_units", step=6), prompt=True),
        verdict(finding("plateau"), finding("dead_units", step=65)),
        verdict(finding("plateau")),
        verdict(),
    ]
    well = [
        verdict(harm=None),
        verdict(finding("plateau"), harm=None),
        verdict(finding("plateau", "error"), harm=None),
        verdict(finding("plateau", "info"), harm=None),
    ]
    total = score(sick + well)
    assert (total.num_sick, total.num_healthy) == (4, 4)
    assert (total.found, total.top1, total.top3) == (0.75, 0.25, 0.5)
    assert (total.errors_on_healthy, total.alarms_on_healthy) == (0.25, 0.5)
    assert (total.prompt_in_time, total.median_delay) == (1.0, 60)
    assert math.isnan(total.fixed)


def test_a_late_wiring_finding_is_not_in_time() -> None:
    late = verdict(finding("dead_units", step=16), prompt=True, onset=5)
    assert score([late]).prompt_in_time == 0.0
    assert score([replace(late, every=10)]).prompt_in_time == 1.0
    # What was raised while the run went on is worth more than what was dated afterwards.
    assert score([replace(late, live_delay=4)]).prompt_in_time == 1.0


@pytest.mark.parametrize(("fixed", "share"), [((True, False), 0.5), ((True, None), 0.5)])
def test_fixes(fixed: tuple[bool | None, ...], share: float) -> None:
    told = verdict(finding("dead_units"), numeric_fix=True)
    assert score([replace(told, fixed=each) for each in fixed]).fixed == share
