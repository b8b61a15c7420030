"""Every fault of the catalogue is there, runs, and does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchvitals import open_run
from torchvitals.testing import CASES, FAULTS, Settings, run_case
from torchvitals.testing.bases import BASES
from torchvitals.testing.settings import apply_change
from torchvitals.testing.training import Training

# Number and bases, as the catalogue has them.
CATALOGUE = {
    1: "MCG", 2: "MCG", 3: "G", 4: "M", 5: "R", 6: "R", 7: "M", 8: "MC", 9: "M", 10: "C", 11: "M",
    12: "C", 13: "C", 14: "M", 15: "MG", 16: "M", 17: "MG", 18: "G", 19: "M", 20: "G", 21: "G",
    22: "G", 23: "G", 24: "MG", 25: "G", 26: "M", 27: "C", 28: "C", 29: "M", 30: "MC", 31: "M",
    32: "MC", 33: "C", 34: "C", 35: "C", 36: "C", 37: "M", 38: "C", 39: "M", 40: "M", 41: "G",
    42: "G",
}  # fmt: skip

RULES = """non_finite non_finite_input amp_overflow lost_updates adam_eps_dominates
vanishing_gradients exploding_gradients gradient_spike tensor_spike over_clipping orphan_parameter
gradients_not_cleared no_effective_step update_not_descent update_ratio frozen_layer lr_too_high
lr_too_low schedule_fault edge_of_stability adam_variance_lag unbalanced_rotation dead_units
dormant_units saturation activation_scale bad_init weight_blow_up over_regularised attention_logits
attention_collapse logit_drift rank_collapse massive_activations loss_spike divergence plateau
oscillation loss_at_start summed_loss overfitting input_ignored train_eval_mismatch wrong_loss_input
leakage class_imbalance input_scale repeated_batches data_bound slow_step memory_leak stalled
batch_too_small replicas_differ straggler"""


def test_the_catalogue_is_complete() -> None:
    assert {number: fault.bases for number, fault in FAULTS.items()} == CATALOGUE
    assert len({fault.id for fault in FAULTS.values()}) == 42


@pytest.mark.parametrize("number", FAULTS)
def test_names_are_rules(number: int) -> None:
    names = FAULTS[number].names
    assert names
    assert set(names) <= set(RULES.split())
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("key", [case.key for case in CASES.values() if case.fault])
def test_runs(key: str, tmp_path: Path) -> None:
    outcome = run_case(key, 0, tmp_path / "run", steps=20)
    with open_run(tmp_path / "run") as history:
        assert history.status == "finished"
        assert history.series("loss").steps.tolist() == list(range(1, 21))
        assert not [e for e in history.events() if e.kind == "degraded"]
        # Nothing in the file says what was injected.
        assert key not in str(history.info.config)
    assert outcome.onset is not None
    assert outcome.onset <= 20
    reference = CASES[CASES[key].reference or ""]
    assert reference.is_healthy


def training(number: int, seed: int = 0, **settings: object) -> Training:
    fault = FAULTS[number](seed)
    base = BASES[fault.bases[0]]
    made = base.settings(seed)
    for name, value in {**fault.variant_of(base.letter), **settings}.items():
        setattr(made, name, value)
    fault.settings(made)
    return Training(base, made, fault)


def test_a_detached_block_gets_no_gradient() -> None:
    sick = training(12)
    inputs, targets = next(iter(sick.batches()))
    sick.base.loss(sick.model(inputs), targets).backward()
    without = {n for n, p in sick.model.named_parameters() if p.grad is None}
    assert without
    assert all(name.startswith("blocks.") for name in without)


def test_a_swapped_model_never_moves(tmp_path: Path) -> None:
    sick = training(14, steps=5)
    before = {n: p.clone() for n, p in sick.model.named_parameters()}
    sick.run(tmp_path / "run", "14")
    assert all(torch.equal(p, before[n]) for n, p in sick.model.named_parameters())


def test_one_bit_flips() -> None:
    sick = training(20)
    before = sick.model.get_parameter("layers.1.up.weight").detach().clone()
    sick.fault.after_step(sick, sick.fault.onset - 1, torch.tensor(0.0))
    changed = sick.model.get_parameter("layers.1.up.weight") != before
    assert int(changed.sum()) == 1


def test_a_rate_jumps_once(tmp_path: Path) -> None:
    sick = training(21, steps=20, warmup_steps=0, schedule="constant", eval_every=50)
    sick.run(tmp_path / "run", "21")
    with open_run(tmp_path / "run") as history:
        rates = history.series(history.keys("optimizer", stat="lr")[0]).values
    assert rates[-1] == pytest.approx(30 * rates[0], rel=1e-4)


def test_a_graph_is_kept() -> None:
    sick = training(40)
    inputs, targets = next(iter(sick.batches()))
    loss = sick.fault.loss(sick, sick.fault.forward(sick, inputs), targets)
    sick.fault.backward(sick, 1, loss)
    sick.fault.after_step(sick, 1, loss)
    sick.fault.kept[0].backward()  # type: ignore[attr-defined]  what was freed would raise


def test_workers_repeat_each_other() -> None:
    sick = training(38)
    first = [inputs.sum().item() for inputs, _ in sick.fault.loader(sick)]
    again = [inputs.sum().item() for inputs, _ in sick.fault.loader(sick)]
    assert len(first) == 16
    assert len(set(first)) == 4
    assert first == again


def test_validation_lies_in_train() -> None:
    sick = training(35)
    train = {x.sum().item() for x in sick.data.train.inputs}
    assert all(x.sum().item() in train for x in sick.data.val.inputs)
    assert not any(x.sum().item() in train for x in sick.data.test.inputs)


def test_a_change_is_applied() -> None:
    settings = Settings(seed=0, lr=0.3, clip_norm=None)
    change = {"lr": {"from": 0.3, "to": 0.003}, "clip": {"to": 1.0}, "hats": {"to": 2}}
    assert apply_change(settings, change) == ["lr", "clip_norm"]
    assert (settings.lr, settings.clip_norm) == (0.003, 1.0)
    assert apply_change(settings, {"betas": {"from": (0.9, 0.9999), "to": [0.9, 0.99]}}) == [
        "beta2"
    ]
    assert settings.beta2 == 0.99
    assert apply_change(settings, {"batch_size": 32.0}) == ["batch_size"]
    assert settings.batch_size == 32
    assert isinstance(settings.batch_size, int)


def test_a_change_undoes_the_jump() -> None:
    fault = FAULTS[21](0)
    settings = BASES["G"].settings(0)
    fault.settings(settings)
    assert fault.apply(settings, {"lr": {"from": 0.03, "to": 0.001}}) == ["lr"]
    assert fault.lr_factor(fault.onset) == pytest.approx(1.0)


def test_a_change_reaches_the_run(tmp_path: Path) -> None:
    case = CASES["02-lr-times-1e-4-M"]
    sick = run_case(case, 0, tmp_path / "a", steps=20)
    rate = sick.settings["lr"]
    change = {"lr": {"from": rate, "to": rate * 1e4}}
    well = run_case(case, 0, tmp_path / "b", steps=20, change=change)
    clean = run_case("clean-M", 0, tmp_path / "c", steps=20)
    assert well.changed == ("lr",)
    assert well.train_loss == pytest.approx(clean.train_loss, rel=1e-5)
    assert sick.train_loss > clean.train_loss + 0.1
