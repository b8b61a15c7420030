"""What the guard sees and does, around plain loops."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from torchvitals import Guard
from torchvitals.guard import MeanStd
from torchvitals.record import ConfigError, GuardStop

from .training import BAD, NAN, Training, same


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def guarded(guard, make=adam, **kwargs):
    training = Training(make, **kwargs)
    guard.attach(training.optimizer, training.model)
    return training


def norm_of(training, batch):
    """The global norm, by hand, in float64."""
    training.loss(batch).backward()
    squares = [p.grad.double().square().sum() for p in training.model.parameters()]
    training.optimizer.zero_grad()
    return math.sqrt(sum(map(float, squares)))


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_last_norm_is_the_global_norm(backend):
    with Guard("warn", backend=backend) as guard:
        training = guarded(guard)
        assert math.isnan(guard.last_norm)
        for batch in range(3):
            expected = norm_of(training, batch)
            training.step(batch)
            assert guard.last_norm == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_norms_are_reduced_in_float32_at_least(dtype, backend):
    model = nn.Linear(300, 300, bias=False, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model.weight.grad = torch.full((300, 300), 300.0, dtype=dtype)
    with Guard("skip", backend=backend).attach(optimizer, model) as guard:
        optimizer.step()
        # The sum of squares, 8.1e9, is beyond float16.
        assert guard.last_norm == pytest.approx(300.0 * 300.0, rel=1e-3)
        assert not guard.last_flagged


def test_sparse_gradients_have_the_norm_of_the_dense_ones():
    table = nn.Embedding(6, 3, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
    for backend in ("native", "torch"):
        with Guard("warn", backend=backend).attach(optimizer, table) as guard:
            table(torch.tensor([1, 1, 4])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            assert guard.last_norm == pytest.approx(math.sqrt(3 * (4 + 1)))


def test_a_skipped_steps_gradients_are_given_back():
    with Guard("skip") as guard:
        training = guarded(guard)
        training.loss((0, NAN)).backward()
        grads = [p.grad for p in training.model.parameters()]
        training.optimizer.step()
        assert guard.last_step_skipped
        assert all(p.grad is g for p, g in zip(training.model.parameters(), grads, strict=True))


@pytest.mark.parametrize("at_end", [True, False])
def test_it_does_not_matter_where_zero_grad_stands(at_end):
    with Guard("skip", rule=1e3) as guard:
        training = guarded(guard)
        for batch in (0, 1, (2, BAD), 3):
            if not at_end:
                training.optimizer.zero_grad()
            training.loss(batch).backward()
            training.optimizer.step()
            if at_end:
                training.optimizer.zero_grad()
        assert guard.counts["skip"] == 1


def test_accumulated_gradients_are_judged_as_their_sum():
    with Guard("skip", rule=1e3) as guard:
        training = guarded(guard)
        for micro in ((0, BAD), 1):
            training.loss(micro).backward()
            assert guard.counts["skip"] == 0
        training.optimizer.step()
        assert guard.last_step_skipped


def test_flagged_values_never_enter_the_statistics():
    guard = Guard("skip", rule=MeanStd(6.0, warmup=5))
    with guard:
        training = guarded(guard)
        training.run(range(10))
        before = guard.state_dict()["wards"][0]["rule_state"]
        for kind in (BAD, NAN, BAD):
            training.step((20, kind))
            assert guard.last_flagged
        assert guard.state_dict()["wards"][0]["rule_state"] == before
        training.step(11)
        assert guard.state_dict()["wards"][0]["rule_state"] != before


def test_nan_is_flagged_during_warm_up_and_spikes_are_not():
    with Guard("skip") as guard:
        training = guarded(guard)
        training.step((0, BAD))
        assert not guard.last_flagged
        training.step((1, NAN))
        assert guard.last_step_skipped


def test_a_verdict_tells_everything():
    seen = []
    with Guard("skip", rule=MeanStd(6.0, warmup=5), on_spike=seen.append) as guard:
        training = guarded(guard)
        training.run(range(8))
        training.step((8, BAD))
    (verdict,) = seen
    assert verdict is guard.verdicts[-1]
    assert (verdict.step, verdict.cause, verdict.done) == (9, "spike", "skip")
    assert (verdict.rule, verdict.signal) == ("mean_std", "gradient_norm")
    assert verdict.value > verdict.threshold > 0
    assert verdict.stats["count"] == 8
    assert set(verdict.culprits) <= {name for name, _ in training.model.named_parameters()}
    assert verdict.culprits
    assert "spike: gradient norm" in verdict.text
    assert verdict.text.endswith("step skipped")


def test_the_culprit_is_named():
    with Guard("skip", rule=MeanStd(6.0, warmup=5)) as guard:
        training = guarded(guard)
        training.run(range(8))
        for value, cause in ((math.inf, "non_finite"), (1e6, "spike")):
            training.loss(8).backward()
            training.model[2].weight.grad[0, 0] = value
            training.optimizer.step()
            training.optimizer.zero_grad()
            assert guard.verdicts[-1].cause == cause
            assert guard.verdicts[-1].culprits[0] == "2.weight"


def test_without_a_model_parameters_are_called_by_their_place():
    training = Training(adam)
    with Guard("skip").attach(training.optimizer) as guard:
        training.step((0, NAN))
        assert guard.verdicts[-1].culprits[0] == "group 0 parameter 3"


def test_running_statistics_of_a_skipped_batch_are_put_back():
    def model():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    clean = Training(adam, model()).run([0, 1, 3])
    with Guard("skip") as guard:
        training = guarded(guard, model=model()).run([0, 1, (2, NAN), 3])
    assert same(clean.everything(), training.everything())


def test_clipping_is_judged_before_it_happens():
    """The user's own clipping would hide every spike."""
    with Guard("skip", rule=1e3) as guard:
        training = guarded(guard)
        expected = norm_of(training, (0, BAD))
        training.loss((0, BAD)).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.step()
        assert guard.last_step_skipped
        assert guard.last_norm == pytest.approx(expected, rel=1e-5)
        training.optimizer.zero_grad()
        training.loss((1, NAN)).backward()
        training.model[0].weight.grad.nan_to_num_(0.0)
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.step()
        # After clipping every tensor is NaN; before it one was not.
        assert "0.weight" not in guard.verdicts[-1].culprits


@pytest.mark.parametrize("to_none", [True, False])
def test_a_clipping_call_that_no_step_followed_is_forgotten(to_none):
    """A loop that leaves bad batches out itself."""
    with Guard("skip", rule=1e3) as guard:
        training = guarded(guard)
        training.step(0)
        for batch in ((1, NAN), (2, BAD)):
            training.loss(batch).backward()
            nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
            training.optimizer.zero_grad(set_to_none=to_none)
        expected = norm_of(training, 3)
        training.optimizer.zero_grad(set_to_none=to_none)
        training.step(3)
        assert guard.last_norm == pytest.approx(expected, rel=1e-5)
        training.loss((4, BAD)).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.zero_grad(set_to_none=to_none)
        training.loss(5).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        nn.utils.clip_grad_value_(training.model.parameters(), 1e-3)
        training.optimizer.step()
        assert not guard.last_flagged
        assert guard.last_norm > 0.1, "read before the first of two clipping calls"


def test_clip_scales_down_to_the_threshold():
    with Guard("clip", rule=10.0) as guard:
        training = guarded(guard, lambda p: torch.optim.SGD(p, lr=1.0))
        before = [p.detach().clone() for p in training.model.parameters()]
        training.step((0, BAD))
        moved = [(p - q).double() for p, q in zip(training.model.parameters(), before, strict=True)]
        assert math.sqrt(sum(float(m.detach().square().sum()) for m in moved)) == pytest.approx(
            10.0, 1e-4
        )
        assert guard.counts["clip"] == 1
        assert guard.last_flagged
        assert not guard.last_step_skipped
        training.step((1, NAN))
        assert guard.last_step_skipped


def test_zclip_is_what_the_paper_clips_to():
    from .test_rules import zclip_reference

    scale = [1.0] * 30
    scale[27], scale[29] = 50.0, 8.0
    lr0 = lambda p: torch.optim.SGD(p, lr=0.0)
    with Guard(rule="zclip") as guard:
        training = guarded(guard, lr0)
        raw, clipped = [], []
        for batch, by in enumerate(scale):
            training.loss(batch, by).backward()
            training.optimizer.step()
            raw.append(guard.last_norm)
            squares = [p.grad.double().square().sum() for p in training.model.parameters()]
            clipped.append(math.sqrt(float(sum(squares))))
            training.optimizer.zero_grad()
    assert clipped == pytest.approx(zclip_reference(raw), rel=1e-4)
    assert guard.counts["clip"] >= 2


def test_adagc_scales_single_tensors():
    from torchvitals.guard import AdaGC

    with Guard(rule=AdaGC(warmup=5)) as guard:
        training = guarded(guard, lambda p: torch.optim.SGD(p, lr=0.0))
        training.run(range(8))
        means = guard._wards[0].rule._means.copy()
        training.loss(8).backward()
        training.model[2].weight.grad.mul_(1000.0)
        before = [p.grad.clone() for p in training.model.parameters()]
        training.optimizer.step()
        after = [p.grad for p in training.model.parameters()]
        norms = [float(g.norm()) for g in before]
        expected = np.minimum(norms, 1.05 * means)
        assert [float(g.norm()) for g in after] == pytest.approx(expected.tolist(), rel=1e-4)
        assert guard.verdicts[-1].culprits == ["2.weight"]
        assert guard.verdicts[-1].signal == "tensor_norms"


def test_stop_raises_before_the_weights_change():
    with Guard("stop", rule=1e3) as guard:
        training = guarded(guard)
        training.run(range(3))
        before = training.everything()
        with pytest.raises(GuardStop, match=r"step 4: spike: gradient norm .* > 1000 \(limit\)"):
            training.step((3, BAD))
        assert same(before, training.everything())


def test_warn_does_nothing_but_tell():
    clean = Training(adam).run([0, (1, BAD), 2])
    with Guard("warn", rule=1e3) as guard:
        training = guarded(guard).run([0, (1, BAD), 2])
        assert guard.counts["warn"] == 1
    assert same(clean.everything(), training.everything())


def test_an_action_can_be_any_callable():
    said = []

    def decide(verdict):
        said.append(verdict.cause)
        return "skip" if verdict.cause == "non_finite" else None

    with Guard(decide, rule=1e3) as guard:
        training = guarded(guard)
        training.step((0, BAD))
        assert not guard.last_step_skipped
        training.step((1, NAN))
        assert guard.last_step_skipped
    assert said == ["spike", "non_finite"]
    assert (guard.counts["warn"], guard.counts["skip"]) == (1, 1)


def test_what_a_users_function_raises_is_raised(monkeypatch):
    monkeypatch.delenv("TORCHVITALS_STRICT")

    def fail(_verdict):
        raise KeyError("mine")

    for options in ({"on_spike": fail}, {"action": fail}):
        with Guard(rule=1e3, **options) as guard:
            training = guarded(guard)
            with pytest.raises(KeyError, match="mine"):
                training.step((0, BAD))


def test_a_callable_that_returns_nonsense_is_told_so():
    with Guard(lambda _: "explode", rule=1e3) as guard:
        training = guarded(guard)
        with pytest.raises(ConfigError, match=r"an action must return one of .*, got 'explode'"):
            training.step((0, BAD))


def test_causes_can_have_actions_of_their_own():
    with Guard({"non_finite": "stop", "spike": "clip"}, rule=1e3) as guard:
        training = guarded(guard)
        training.step((0, BAD))
        assert guard.counts["clip"] == 1
        with pytest.raises(GuardStop, match="non-finite"):
            training.step((1, NAN))


def test_a_closure_is_judged_after_it_ran():
    def steps(training, batches):
        for batch in batches:

            def closure(batch=batch):
                training.optimizer.zero_grad()
                loss = training.loss(batch)
                loss.backward()
                return loss

            training.optimizer.step(closure)

    clean = Training(adam)
    steps(clean, [0, 1, 3])
    with Guard("skip") as guard:
        training = guarded(guard)
        steps(training, [0, 1])
        returned = training.optimizer.step(lambda: training.loss((2, NAN)).backward() or 7.0)
        assert returned == 7.0
        assert guard.last_step_skipped
        training.optimizer.step(closure=lambda: clear_and(training, 3))
    assert same(clean.everything(), training.everything())


def clear_and(training, batch):
    training.optimizer.zero_grad()
    loss = training.loss(batch)
    loss.backward()
    return loss


def test_a_closures_loss_is_judged():
    with Guard("skip") as guard:
        training = guarded(guard)

        def closure():
            training.loss(0).backward()
            return torch.tensor(math.nan)

        training.optimizer.step(closure)
        assert guard.last_step_skipped
        assert guard.verdicts[-1].signal == "loss"


def test_a_subclass_that_calls_super_is_judged_once():
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    with Guard("skip", rule=1e3) as guard:
        training = guarded(guard, lambda p: Twice(p, lr=0.01))
        training.step(0)
        assert guard._wards[0].steps == 1
        before = training.everything()
        training.step((1, BAD))
        assert same(before, training.everything())
        assert guard.counts["skip"] == 1


def test_a_step_that_raised_does_not_confuse_the_next():
    class Once(torch.optim.SGD):
        fails = True

        def step(self, closure=None):
            if self.fails:
                raise ValueError("out of memory")
            return super().step(closure)

    with Guard("skip", rule=1e3) as guard:
        training = guarded(guard, lambda p: Once(p, lr=0.01))
        with pytest.raises(ValueError, match="memory"):
            training.step(0)
        training.optimizer.fails = False
        training.optimizer.zero_grad()
        training.step((1, BAD))
        assert guard.last_step_skipped


def test_several_optimizers_are_judged_each_by_its_own():
    first, second = Training(adam, seed=1), Training(adam, seed=2)
    with Guard("skip", rule=1e3) as guard:
        guard.attach([first.optimizer, second.optimizer], [first.model, second.model])
        first.run(range(3))
        second.run(range(3))
        before = first.everything()
        first.step((3, BAD))
        assert guard.last_step_skipped
        assert same(before, first.everything())
        second.step(3)
        assert not guard.last_step_skipped
        second.step((4, BAD))
        assert guard.verdicts[-1].optimizer == 1
        assert guard.verdicts[-1].culprits[0].startswith("model1.")


def test_no_gradients_at_all_is_no_news():
    with Guard("skip") as guard:
        training = guarded(guard)
        training.optimizer.step()
        assert guard.counts["skip"] == 0
        training.step(0)


class Spiky:
    """A rule that flags what it is told to."""

    def __init__(self, *steps):
        self.steps, self.asked = set(steps), 0

    def __call__(self, _stats, _value):
        self.asked += 1
        return self.asked in self.steps


def test_too_many_skips_escalate():
    rule = Spiky(*range(1, 100))
    with Guard("skip", rule=rule, max_skips=3, within=10, escalate="stop") as guard:
        training = guarded(guard)
        training.run(range(3))
        with pytest.raises(GuardStop, match="3 steps were skipped in the last 10"):
            training.step(3)
    assert guard.counts["skip"] == 3


def test_skips_far_apart_do_not():
    rule = Spiky(*range(1, 200, 5))
    with Guard("skip", rule=rule, max_skips=3, within=10, escalate="stop") as guard:
        guarded(guard).run(range(60))
    assert guard.counts["skip"] == 12


def test_a_norm_that_stays_up_is_taken_as_the_new_level():
    with Guard("skip", rule=MeanStd(6.0, warmup=5)) as guard:
        training = guarded(guard, lambda p: torch.optim.SGD(p, lr=0.0))

        def step(batch, scale):
            training.loss(batch, scale).backward()
            training.optimizer.step()
            training.optimizer.zero_grad()

        for batch in range(10):
            step(batch, 1.0)
        for batch in range(10, 40):
            step(batch, 1e4)
        assert guard.counts["skip"] == 5
        assert guard.counts["accept"] == 1
        assert guard.verdicts[-1].done == "accept"
        step(40, 1e8)
        assert guard.last_step_skipped, "the new level is judged by, too"


def test_endless_nan_stops_where_nothing_is_kept():
    with Guard("skip") as guard:
        training = guarded(guard)
        training.step(0)
        with pytest.raises(GuardStop, match="5 steps were skipped in the last 50"):
            training.run((batch, NAN) for batch in range(1, 10))


@pytest.mark.parametrize(
    ("rates", "resets"),
    [
        ([0.01] * 15, False),
        ([0.01] * 10 + [0.001] * 5, True),
        ([0.001] * 10 + [0.0045] * 5, True),
        ([0.01 * (t + 1) / 15 for t in range(15)], False),
        ([0.01 * (15 - t) / 15 for t in range(15)], False),
        ([0.005 * (1 + math.cos(math.pi * t / 15)) for t in range(15)], False),
        ([0.01 * 0.9**t for t in range(15)], False),
        ([0.005 * (1.001 + math.cos(math.pi * (t % 10) / 10)) for t in range(15)], True),
    ],
    ids=["constant", "drop", "raise", "warm-up", "linear", "cosine", "exponential", "restart"],
)
def test_only_jumps_of_the_learning_rate_reset_baselines(rates, resets):
    with Guard("warn") as guard:
        training = guarded(guard)
        for batch, rate in enumerate(rates):
            training.optimizer.param_groups[0]["lr"] = rate
            training.step(batch)
        count = guard._wards[0].rule.stats()["count"]
    assert count == (5 if resets else 15)


def test_parameters_that_join_reset_baselines():
    with Guard("warn") as guard:
        training = guarded(guard)
        training.model[0].requires_grad_(False)
        training.run(range(10))
        training.model[0].requires_grad_(True)
        training.run(range(10, 14))
        assert guard._wards[0].rule.stats()["count"] == 4
        training.model[0].requires_grad_(False)
        training.run(range(14, 17))
        training.model[0].requires_grad_(True)
        training.run(range(17, 20))
        assert guard._wards[0].rule.stats()["count"] == 10, "known ones may come and go"


def test_a_parameter_group_can_be_added():
    with Guard("skip") as guard:
        training = guarded(guard).run(range(3))
        more = nn.Linear(2, 2)
        training.optimizer.add_param_group({"params": list(more.parameters())})
        (training.model(torch.randn(4, 4)) + more(torch.full((4, 2), math.nan))).sum().backward()
        training.optimizer.step()
        assert guard.last_step_skipped
        assert guard.verdicts[-1].culprits[0] == "parameter 4"


@pytest.mark.parametrize("kind", ["number", "tensor", "numpy"])
def test_a_bad_loss_alone_is_enough(kind):
    make = {"number": float, "tensor": torch.tensor, "numpy": np.float64}[kind]
    with Guard("skip") as guard:
        training = guarded(guard)
        guard.tell_loss(make(math.inf))
        training.step(0)
        assert guard.last_step_skipped
        training.step(1)
        assert not guard.last_step_skipped


def test_a_loss_that_spikes_alone_is_flagged():
    with Guard("skip") as guard:
        training = guarded(guard)
        for batch in range(60):
            guard.tell_loss(1.0 + 0.01 * (batch % 7))
            training.step(batch)
        guard.tell_loss(9.0)
        training.step(60)
        assert guard.last_step_skipped
        assert guard.verdicts[-1].signal == "loss"
        assert guard.verdicts[-1].stats["median"] == pytest.approx(1.03)


@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (torch.ones(2), r"a loss must be one number, got a tensor of shape \(2,\)"),
        ("low", "a loss must be a number or a one-element tensor, got str"),
    ],
)
def test_a_loss_must_be_a_number(loss, text):
    with Guard("skip") as guard:
        guarded(guard)
        with pytest.raises(ConfigError, match=text):
            guard.tell_loss(loss)


def test_detach_leaves_nothing_behind():
    training = Training(adam)
    guard = Guard("skip").attach(training.optimizer, training.model)
    training.step(0)
    guard.detach()
    guard.detach()
    training.step((1, NAN))
    assert torch.isnan(training.model[0].weight).any()
    alive = weakref.ref(training.model)
    del training
    gc.collect()
    assert alive() is None
    again = Training(adam)
    guard.attach(again.optimizer, again.model)
    again.step((0, NAN))
    assert guard.last_step_skipped
    guard.detach()


def test_a_mistake_of_ours_ends_the_guard_and_not_the_training(monkeypatch, caplog):
    monkeypatch.delenv("TORCHVITALS_STRICT")
    noted = []
    with Guard("skip") as guard:
        training = guarded(guard)
        guard.listen(lambda *what: noted.append(what))
        monkeypatch.setattr(guard, "_cases", lambda *_: 1 / 0)
        clean = Training(adam).run(range(3))
        training.run(range(3))
    assert same(clean.everything(), training.everything())
    assert [kind for kind, *_ in noted] == ["degraded"]
    assert "the guard failed and is switched off: ZeroDivisionError" in caplog.text


def test_a_guarded_training_is_bit_identical_while_all_is_well():
    clean = Training(adam).run(range(30))
    with Guard() as guard:
        training = guarded(guard).run(range(30))
    assert same(clean.everything(), training.everything())
    assert not any(guard.counts.values())
