"""Each rule fires on a run made sick in one place, and is silent on its healthy counterpart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchvitals.diagnosis import diagnose
from torchvitals.record import ROOT, Event, Finding
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


def test_where_a_run_began_is_not_blurred_by_first_steps_that_threw_it_up(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder["loss"] = lambda t: 1.6 if t == 1 else 15.0 if t < 6 else 1.6
    builder.each("update/{}/ratio", lambda t: 0.8 if t < 10 else 0.02)
    found = builder.check("lr_too_high")
    assert found is not None
    assert "where it began" in found.explanation
    assert found.severity == "error"


def test_a_loss_that_has_hardly_begun_is_not_blamed_on_the_rate(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.each("update/{}/ratio", 0.04)
    builder["loss"] = lambda t: 2.3 - 0.001 * t
    assert builder.check("lr_too_high", at=15) is None
    assert builder.check("lr_too_high") is not None


def test_a_rate_that_was_fine_is_not_blamed_for_a_shock(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.each("update/{}/ratio", lambda t: 3e-3 if t < 80 else 0.9)
    builder["loss"] = lambda t: 2.3 * 0.97**t if t < 80 else float("nan")
    assert builder.check("lr_too_high") is None


def test_attention_blown_up_by_large_steps_is_blamed_on_the_rate(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.each("update/{}/ratio", lambda t: 0.3 if t < 10 else 0.02)
    assert builder.check("lr_too_high") is None  # the loss falls
    builder = RunBuilder(tmp_path / "grown")
    builder.each("update/{}/ratio", lambda t: 0.3 if t < 10 else 0.02)
    builder["attention/attn.head_0/max_logit"] = lambda t: 3.0 * t
    assert builder.check("lr_too_high") is not None
    builder = RunBuilder(tmp_path / "shoved")
    builder.each("update/{}/ratio", lambda t: 0.3 if t < 2 else 0.02)
    builder["attention/attn.head_0/max_logit"] = lambda t: 3.0 * t
    assert builder.check("lr_too_high") is not None


def test_recommended_rates_lead_to_healthy_steps(tmp_path: Path) -> None:
    """Steps go with the rate: the new one must bring them to 1e-3 … 2e-2 while they are fresh."""
    high = RunBuilder(tmp_path / "high", optimizer="SGD")
    high.each("update/{}/ratio", 0.3)
    high["loss"] = lambda t: 2.3 + 0.1 * t
    low = RunBuilder(tmp_path / "low")
    low.each("update/{}/ratio", 1e-6)
    low.each("update/{}/ratio", 3e-7, low.weights[:2])  # weights differ by about that much
    low["loss"] = 2.3
    for builder, name, size in ((high, "lr_too_high", 0.3), (low, "lr_too_low", 6.5e-7)):
        found = builder.check(name)
        assert found is not None
        change = found.change["lr"]
        assert 1e-3 <= size * change["to"] / change["from"] <= 2e-2


def test_a_crowded_machine_is_information(tmp_path: Path) -> None:
    for others, severity in ((True, "info"), (False, "warning")):
        builder = RunBuilder(tmp_path / str(others))
        builder["speed/run/steps_per_s"] = lambda t: 10.0 if t < 80 else 3.0
        builder["machine/process/cpu_frac"] = 0.1 if others else 0.9
        builder["machine/system/cpu_frac"] = 1.0
        found = builder.check("slow_step")
        assert found is not None
        assert found.severity == severity


def test_many_weights_at_once_are_no_flipped_bit(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.each("parameter/{}/max", lambda t: 1e4 if t >= 70 else 0.4)
    assert builder.check("weight_blow_up") is None


def test_data_that_changed_and_are_learned_are_no_error(tmp_path: Path) -> None:
    for learned in (True, False):
        builder = RunBuilder(tmp_path / str(learned), steps=300)
        builder["loss"] = lambda t, learned=learned: (
            3.0 * 0.7**t + 0.05 if t < 150 else 5.0 * (0.98 if learned else 1.0) ** (t - 150)
        )
        found = builder.check("loss_spike")
        assert found is not None
        assert found.severity == ("warning" if learned else "error")
        assert found.first_step == 150


def test_decay_that_forgets_is_told_though_norms_hold(tmp_path: Path) -> None:
    for decay, told in ((10.0, True), (0.1, False)):
        builder = RunBuilder(tmp_path / str(decay))
        builder["optimizer/group0/weight_decay"] = decay
        builder.each("update/{}/ratio", 5e-3)
        builder["optimizer/group0/lr"] = 3e-3
        assert (builder.check("over_regularised") is not None) is told


def test_gradients_that_went_away_are_not_the_decays_fault(tmp_path: Path) -> None:
    for first, told in ((1.0, False), (1e-9, True)):
        builder = RunBuilder(tmp_path / str(first), optimizer="SGD")
        builder["optimizer/group0/weight_decay"] = 5e-4
        builder.each("parameter/{}/norm", lambda t: 6.0 * 0.97**t)
        builder.each("gradient/{}/norm", lambda t, first=first: first if t < 4 else 1e-20)
        assert (builder.check("over_regularised") is not None) is told


def test_at_the_end_of_a_schedule_no_layer_is_frozen(tmp_path: Path) -> None:
    for others, told in ((1e-3, True), (1e-8, False)):
        builder = RunBuilder(tmp_path / str(others))
        builder.each("update/{}/ratio", others)
        builder["update/layers.1.weight/ratio"] = 0.0
        assert (builder.check("frozen_layer") is not None) is told


def test_idle_steps_of_a_run_that_learns_are_a_warning(tmp_path: Path) -> None:
    for name, loss, severity in (
        ("learns", lambda t: 2.3 * 0.97**t, "warning"),
        ("does not", lambda t: 2.3 + 0.01 * (t % 2), "error"),
    ):
        builder = RunBuilder(tmp_path / name)
        builder["loss"] = loss
        builder[f"gradient/{ROOT}/num_backward"] = lambda t: None if t < 4 else float(t % 2)
        builder[f"gradient/{ROOT}/norm"] = lambda t: None if t < 4 else 0.6 * (t % 2)
        found = builder.check("no_effective_step")
        assert found is not None
        assert found.severity == severity
        assert found.first_step == 1


def test_a_loss_that_need_not_fall_makes_large_steps_a_warning(tmp_path: Path) -> None:
    for size, slope, severity in (
        (0.06, 0.3, "warning"),
        (0.06, 2.0, "error"),
        (0.5, 0.3, "error"),
    ):
        builder = RunBuilder(tmp_path / f"{size} {slope}")
        builder.each("update/{}/ratio", size)
        builder["loss"] = lambda t: 2.3 + 0.05 * (t % 3)
        builder[f"gradient/{ROOT}/norm"] = lambda t, slope=slope: 1.0 if t < 10 else slope
        found = builder.check("lr_too_high")
        assert found is not None
        assert found.severity == severity


def test_a_sparse_layer_in_a_model_that_learns_is_information(tmp_path: Path) -> None:
    for dead, loss, severity in (
        (0.7, lambda t: 2.3 * 0.97**t, "info"),
        (0.9, lambda t: 2.3 * 0.97**t, "warning"),
        (0.7, lambda t: 2.3 * (0.7 + 0.3 * 0.9**t), "warning"),
    ):
        builder = RunBuilder(tmp_path / f"{dead} {severity}")
        builder["loss"] = loss
        builder["activation/acts.1/dead_frac"] = dead
        found = builder.check("dead_units")
        assert found is not None
        assert found.severity == severity


def test_weights_that_began_at_zero_say_nothing_of_the_rate(tmp_path: Path) -> None:
    for name, first, told in (("lora", 0.02, False), ("too high", 0.8, True)):
        builder = RunBuilder(tmp_path / name)
        builder["loss"] = lambda t: 1.2 + 0.05 * (t % 3)
        for at, weight in enumerate(builder.weights):
            builder[f"update/{weight}/ratio"] = lambda t, at=at, first=first: (
                (0.99 if at % 2 else first) if t < 5 else 0.01
            )
        assert (builder.check("lr_too_high") is not None) is told


def test_evaluations_that_swing_a_little_are_information(tmp_path: Path) -> None:
    for swing, severity in ((0.08, "info"), (0.3, "warning")):
        builder = RunBuilder(tmp_path / str(swing), steps=400)
        builder.evals({s: 1.0 + swing * (-1) ** (s // 25) for s in range(25, 401, 25)})
        found = builder.check("oscillation")
        assert found is not None
        assert found.severity == severity


def test_near_zero_a_loss_that_comes_up_again_is_information(tmp_path: Path) -> None:
    for level, severity in ((0.15, "info"), (0.5, "warning")):
        builder = RunBuilder(tmp_path / str(level), steps=400)
        builder["loss"] = lambda t, level=level: (
            2.3 * 0.97**t + level / 4 if t < 300 else level * (1 - 1e-4 * (t - 300))
        )
        found = builder.check("divergence")
        assert found is not None
        assert found.severity == severity


def test_a_large_eps_under_which_the_model_learns_is_information(tmp_path: Path) -> None:
    for rest, severity in ((0.15, "info"), (0.5, "warning")):
        builder = RunBuilder(tmp_path / str(rest), options={"eps": 1e-3})
        builder.each("optimizer/{}/sqrt_v_over_eps", 2.0)
        builder["loss"] = lambda t, rest=rest: 2.3 * (rest + (1 - rest) * 0.9**t)
        found = builder.check("adam_eps_dominates")
        assert found is not None
        assert found.severity == severity


def test_training_known_by_heart_is_overfitting_though_validation_rose_little(
    tmp_path: Path,
) -> None:
    builder = RunBuilder(tmp_path / "run", steps=400)
    builder["loss"] = lambda t: 1.8 * 0.95**t + 1e-4
    builder.evals({step: 1.2 + 0.2 * (step > 100) for step in range(50, 401, 50)})
    found = builder.check("overfitting")
    assert found is not None
    assert found.severity == "warning"


def test_training_known_by_heart_is_overfitting_without_a_minimum(tmp_path: Path) -> None:
    for level, told in ((1.2, True), (0.3, False)):
        builder = RunBuilder(tmp_path / str(level), steps=400)
        builder["loss"] = lambda t: 1.8 * 0.95**t + 1e-4
        builder.evals({step: level + 0.2 * (step == 50) for step in range(50, 401, 50)})
        assert (builder.check("overfitting") is not None) is told


def test_near_zero_a_rising_validation_loss_is_information(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run", steps=400)
    builder["loss"] = lambda t: 1.8 * 0.98**t
    values = [0.3, 0.1, 0.06, 0.04, 0.039, 0.045, 0.05, 0.052]
    builder.evals({50 * (at + 1): value for at, value in enumerate(values)})
    found = builder.check("overfitting")
    assert found is not None
    assert found.severity == "info"


def test_idle_experts_are_not_frozen(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder["update/layers.1.weight/ratio"] = 0.0
    builder["gradient/layers.1.weight/missing"] = 1.0
    assert builder.check("frozen_layer") is None


def test_a_rate_annealed_to_nothing_is_the_schedules_matter(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder["optimizer/group0/lr"] = lambda t: 1e-3 * 0.7**t
    builder[f"update/{ROOT}/norm"] = lambda t: 0.04 if t < 30 else 0.0
    assert builder.check("no_effective_step") is None


def test_nothing_is_learned_where_all_groups_have_a_rate_of_zero(tmp_path: Path) -> None:
    def found(name: str, first: Any, second: Any, held: tuple[int, int] = (5, 3)) -> Finding | None:
        builder = RunBuilder(tmp_path / name)
        (group,) = builder.info.groups
        names = group.parameters
        builder.info = replace(
            builder.info,
            groups=tuple(
                replace(group, index=index, parameters=names[:num])
                for index, num in enumerate(held)
            ),
        )
        builder["optimizer/group0/lr"] = first
        builder["optimizer/group1/lr"] = second
        return builder.check("schedule_fault")

    assert found("frozen", 0.0, 1e-3) is None
    assert found("frozen later", lambda t: 1e-3 if t < 30 else 0.0, 1e-3) is None
    both = found("both", 0.0, lambda t: 1e-3 if t < 40 else 0.0)
    assert both is not None
    assert both.first_step == 40
    assert "lr is 0 since step 40" in both.evidence[0].text
    assert both.evidence[0].key == "optimizer/group1/lr"
    assert found("nobody's", 0.0, 1e-3, (8, 0)) is not None
    jump = found("jump beside a frozen one", 0.0, lambda t: 1e-3 if t < 60 else 3e-2)
    assert jump is not None
    assert jump.first_step == 60
    assert jump.evidence[0].key == "optimizer/group1/lr"


def test_attention_that_begins_sharp_is_told_earlier(tmp_path: Path) -> None:
    for first, told in ((60.0, True), (1.0, False)):
        builder = RunBuilder(tmp_path / str(first))
        builder["criterion/cross_entropy/num_classes"] = 10.0
        builder["attention/attn.head_0/max_logit"] = lambda t, first=first: first if t < 5 else 60.0
        assert (builder.check("attention_logits") is not None) is told


def test_dropout_explains_a_gap_until_data_were_seen_often(tmp_path: Path) -> None:
    for epochs, told in ((2, False), (8, True)):
        builder = RunBuilder(tmp_path / str(epochs), types={"drop": "Dropout"}, steps=400)
        builder.evals(dict.fromkeys(range(50, 401, 50), 0.2))
        builder.events = [
            Event(step=40 * at, time=1.7e9, kind="epoch", text="", data={"epoch": at + 1})
            for at in range(epochs)
        ]
        assert (builder.check("leakage") is not None) is told


def test_every_other_batch_is_a_repeat(tmp_path: Path) -> None:
    for often, told in ((2, True), (5, False)):
        builder = RunBuilder(tmp_path / str(often))
        builder["input/batch/repeat_frac"] = lambda t, often=often: 1.0 * (t % often == 0)
        builder.events = [Event(step=0, time=1.7e9, kind="epoch", text="", data={"epoch": 1})]
        assert (builder.check("repeated_batches") is not None) is told


def test_little_learned_of_classes_is_a_warning(tmp_path: Path) -> None:
    for level, told in ((2.0, True), (1.2, False)):
        builder = RunBuilder(tmp_path / str(level), steps=300)
        builder["criterion/cross_entropy/num_classes"] = 10.0
        builder["loss"] = lambda t, level=level: max(2.3 - 0.05 * t, level) + 0.01 * (t % 3)
        found = builder.check("plateau")
        assert (found is not None and found.severity == "warning") is told


def test_large_from_the_first_step_and_nothing_learned_is_exploding(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder[f"gradient/{ROOT}/norm"] = 300.0
    assert builder.check("exploding_gradients") is None  # the loss falls
    builder = RunBuilder(tmp_path / "stuck")
    builder[f"gradient/{ROOT}/norm"] = 300.0
    builder["loss"] = 2.3
    assert builder.check("exploding_gradients") is not None


def test_all_layers_a_little_too_large_add_up(tmp_path: Path) -> None:
    for size, told in ((0.36, True), (0.18, False)):
        builder = RunBuilder(tmp_path / str(size))
        builder.each("parameter/{}/std", size)
        builder.each("parameter/{}/rms", size)
        assert (builder.check("bad_init") is not None) is told
