"""One root cause, one finding: symptoms stand under what explains them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rules.builder import RunBuilder
from tests.rules.sick import CASES, NAN
from torchvitals.diagnosis import diagnose
from torchvitals.diagnosis.grouping import EXPLAINS, ORDER, group
from torchvitals.record import ROOT, Evidence, Finding, Severity
from torchvitals.rules.catalogue import NAMES
from torchvitals.rules.run import Run

ONE = Finding(
    name="",
    severity=Severity.WARNING,
    sites=(ROOT,),
    first_step=10,
    last_step=100,
    evidence=(Evidence(text="x"),),
    explanation="x",
    confidence=0.5,
)


def named(name: str, first: int = 10, severity: str = "warning", sure: float = 0.5) -> Finding:
    return replace(ONE, name=name, first_step=first, severity=Severity(severity), confidence=sure)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(RunBuilder(tmp_path / "run", steps=20).open())


def test_the_table_knows_every_rule_and_has_no_circles() -> None:
    assert sorted(ORDER) == sorted(NAMES)
    assert set(EXPLAINS) <= set(NAMES)
    assert {name for names in EXPLAINS.values() for name in names} <= set(NAMES)


def test_symptoms_go_under_the_cause_with_the_worst_severity(run: Run) -> None:
    (one,) = group(run, [named("loss_spike"), named("non_finite", severity="error"),
                         named("non_finite_input")])  # fmt: skip
    assert one.name == "non_finite_input"
    assert [each.name for each in one.symptoms] == ["non_finite", "loss_spike"]
    assert one.severity is Severity.ERROR


def test_what_came_before_is_not_explained_by_what_came_later(run: Run) -> None:
    found = group(run, [named("loss_spike", 10), named("gradient_spike", 90)])
    assert {one.name for one in found} == {"loss_spike", "gradient_spike"}
    found = group(run, [named("loss_spike", 91), named("gradient_spike", 90)])
    assert [one.name for one in found] == ["gradient_spike"]


def test_a_note_explains_no_warning(run: Run) -> None:
    found = group(run, [named("over_clipping", severity="info"), named("lr_too_low")])
    assert [one.name for one in found] == ["lr_too_low", "over_clipping"]


def test_chains_end_at_the_root(run: Run) -> None:
    (one,) = group(run, [named("bad_init"), named("saturation"), named("vanishing_gradients"),
                         named("plateau")])  # fmt: skip
    assert one.name == "bad_init"
    assert len(one.symptoms) == 3


def test_the_worst_comes_first_then_the_surest(run: Run) -> None:
    found = group(run, [named("data_bound", sure=0.9), named("overfitting", sure=0.6),
                        named("frozen_layer", severity="error", sure=0.2)])  # fmt: skip
    assert [one.name for one in found] == ["frozen_layer", "data_bound", "overfitting"]


def test_a_bad_batch_explains_spike_nan_and_standstill(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", steps=200)
    CASES["non_finite"].spoil(builder)
    CASES["non_finite_input"].prepare(builder)
    builder["input/0/num_nan"] = lambda t: 1.0 * (t == 60)
    builder["loss"] = lambda t: NAN if t >= 60 else 2.0 - t / 100
    with builder.open() as history:
        (one,) = diagnose(history).findings
    assert one.name == "non_finite_input"
    assert "non_finite" in {each.name for each in one.symptoms}


def test_an_exploding_first_layer_is_the_origin(tmp_path: Path) -> None:
    """Seed 003: a bare parameter scales the input; the nearer to it, the larger the gradients."""
    builder = RunBuilder(tmp_path / "run", num=6)
    flat = CASES["plateau"].spoil
    flat(builder)
    for k, weight in enumerate(builder.weights):
        builder[f"gradient/{weight}/norm"] = lambda t, k=k: 2000.0 * 0.3**k
        builder[f"gradient/{weight}/rms"] = lambda t, k=k: 30.0 * 0.3**k
    builder[f"gradient/{ROOT}/norm"] = 2200.0
    with builder.open() as history:
        first = diagnose(history).findings[0]
    assert first.name == "exploding_gradients"
    assert first.sites[0] == "layers.0.weight"
    assert first.severity is Severity.ERROR
