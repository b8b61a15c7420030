"""What the demo takes from a diagnosis to train again with."""

from __future__ import annotations

from typing import Any

import pytest

from torchvitals.cli.demo_fix import recommended
from torchvitals.diagnosis import Diagnosis
from torchvitals.record import Finding, Severity


def diagnosis(*changes: dict[str, Any]) -> Diagnosis:
    findings = tuple(
        Finding(
            name=f"rule_{at}",
            severity=Severity.WARNING,
            sites=("head.weight",),
            first_step=1,
            last_step=9,
            evidence=(),
            explanation="",
            change=change,
        )
        for at, change in enumerate(changes)
    )
    return Diagnosis(run="demo", status="finished", steps=9, findings=findings, not_checked=())


def test_the_rate_of_some_parameters() -> None:
    fix = recommended(diagnosis({"lr": {"from": 0.0, "to": 7e-4, "parameters": ["head.weight"]}}))
    assert fix is not None
    assert (fix.lr, fix.parameters) == (7e-4, ("head.weight",))
    assert str(fix) == "lr of head.weight from 0 to 7e-4"


@pytest.mark.parametrize("wanted", [{"to": 3e-4}, 3e-4])
def test_the_rate_of_all(wanted: Any) -> None:
    fix = recommended(diagnosis({"max_norm": {"to": 1.0}}, {"lr": wanted}))
    assert fix is not None
    assert (fix.finding.name, fix.lr, fix.parameters) == ("rule_1", 3e-4, ())
    assert str(fix) == "lr to 3e-4"


@pytest.mark.parametrize(
    "change", [{}, {"max_norm": {"to": 1.0}}, {"lr": None}, {"lr": {"to": 0.0}}, {"lr": "lower"}]
)
def test_nothing_to_train_again_with(change: dict[str, Any]) -> None:
    assert recommended(diagnosis(change)) is None
    assert recommended(diagnosis()) is None
