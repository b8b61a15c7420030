"""Findings survive the way into a file and back."""

from __future__ import annotations

import json

from torchvitals.record import Cause, Evidence, Finding, Severity


def test_a_finding_comes_back_as_it_was() -> None:
    symptom = Finding(
        name="loss_spike",
        severity=Severity.WARNING,
        sites=("[root module]",),
        first_step=7,
        last_step=7,
        evidence=(),
        explanation="the loss jumped",
        resolved_step=8,
    )
    finding = Finding(
        name="lr_too_high",
        severity=Severity.ERROR,
        sites=("blocks.0", "blocks.1"),
        first_step=5,
        last_step=9,
        evidence=(Evidence(text="ratio 0.3", key="update/a/ratio", step=5, value=0.3),),
        explanation="steps are too large",
        causes=(Cause(text="learning rate", test="lower it", confidence=0.9),),
        fix="lower lr from 0.003 to 0.0003",
        change={"lr": {"from": 0.003, "to": 0.0003}},
        confidence=0.8,
        symptoms=(symptom,),
    )
    again = Finding.from_json(json.loads(json.dumps(finding.to_json())))
    assert again == finding
    assert finding.is_open
    assert not symptom.is_open


def test_severities_have_an_order() -> None:
    ranks = [Severity("info").rank, Severity("warning").rank, Severity("error").rank]
    assert ranks == [0, 1, 2]
