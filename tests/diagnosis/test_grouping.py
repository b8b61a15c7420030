"""One root cause, one finding: symptoms stand under what explains them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rules.builder import RunBuilder
from tests.rules.sick import CASES, NAN
from torchvitals.diagnosis import diagnose
from torchvitals.diagnosis.grouping import EXPLAINS, ORDER, ROLES, group
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
    known = {*NAMES, *ROLES}
    assert sorted(ORDER) == sorted(known)
    assert set(EXPLAINS) <= known
    assert {name for names in EXPLAINS.values() for name in names} <= known


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


def seen(one: Finding, key: str) -> Finding:
    return replace(one, evidence=(Evidence(text="x", key=key),))


def test_a_constant_input_is_a_cause_a_constant_output_a_consequence(run: Run) -> None:
    rate = named("lr_too_high", severity="error")
    (one,) = group(run, [rate, seen(named("input_ignored"), "output/[root module]/batch_std_frac")])
    assert one.name == "lr_too_high"
    (one,) = group(run, [rate, seen(named("input_ignored"), "input/0/std")])
    assert one.name == "input_ignored"


def test_attention_that_began_sharp_is_a_cause_one_that_became_so_is_not(run: Run) -> None:
    rate = named("lr_too_high")
    (one,) = group(run, [rate, named("attention_logits", first=15)])
    assert one.name == "lr_too_high"
    found = group(run, [rate, named("attention_logits", first=1)])
    assert {one.name for one in found} == {"lr_too_high", "attention_logits"}


def test_a_shock_explains_what_follows_and_not_what_was_before(run: Run) -> None:
    late = [named("weight_blow_up", 14), named("dead_units", 16), named("non_finite", 15, "error")]
    (one,) = group(run, [*late, named("gradient_spike", 12), named("loss_spike", 12)])
    assert one.name == "gradient_spike"
    assert len(one.symptoms) == 4
    found = group(run, [named("dead_units", 1), named("loss_spike", 12)])
    assert {one.name for one in found} == {"dead_units", "loss_spike"}


def test_a_huge_first_gradient_is_not_the_fault_of_the_rate(run: Run) -> None:
    (one,) = group(run, [named("lr_too_high", 1), named("exploding_gradients", 1)])
    assert one.name == "exploding_gradients"
    (one,) = group(run, [named("lr_too_high", 1), named("exploding_gradients", 5)])
    assert one.name == "lr_too_high"


def test_a_weight_that_no_step_wrote_explains_the_rest(run: Run) -> None:
    jump = seen(named("weight_blow_up"), "parameter/layers.1.weight/max")
    (one,) = group(run, [named("lr_too_high", 11), jump, named("loss_spike", 11)])
    assert one.name == "weight_blow_up"


def test_units_that_die_late_did_not_keep_the_run_from_learning(run: Run) -> None:
    (one,) = group(run, [named("plateau", 1, "error"), named("dead_units", 15, "error", 0.9)])
    assert one.name == "plateau"
    (one,) = group(run, [named("plateau", 1, "error"), named("dead_units", 6, "error", 0.9)])
    assert one.name == "plateau"  # a quarter of the run is long enough
    (one,) = group(run, [named("plateau", 1, "error"), named("dead_units", 1, "error", 0.9)])
    assert one.name == "dead_units"


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
