"""Going back to a state that was good."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from torchvitals import Guard
from torchvitals.guard.losses import Losses
from torchvitals.record import GuardStop, RollbackFailed

from .training import BAD, NAN, Training, same


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, amsgrad=True)


def broken(guard, training, at=30, steps=60):
    """States before each update; before step `at` + 1 a weight becomes NaN."""
    states = {}
    for batch in range(steps):
        if batch == at:
            with torch.no_grad():
                training.model[0].weight[0, 0] = float("nan")
        training.loss(batch).backward()
        states[batch + 1] = training.everything()
        training.optimizer.step()
        training.optimizer.zero_grad()
        if guard.counts["rollback"]:
            return states, batch + 1
    raise AssertionError("never rolled back")


def tensors_of(training):
    model, optimizer = training.model, training.optimizer
    states = [t for state in optimizer.state.values() for t in state.values()]
    return [id(t) for t in (*model.parameters(), *model.buffers(), *states)]


@pytest.mark.parametrize("make", [sgd, adamw])
def test_weights_moments_counters_and_buffers_are_those_of_the_kept_state(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    training = Training(make, model)
    with Guard(rollback_every=10).attach(training.optimizer, model) as guard:
        training.run(range(5))
        held = tensors_of(training)
        states, step = broken(guard, training, at=25)
        # Kept at steps 1, 11, 21, 31 fails: rolled back after five skips, to the newest that
        # is at least 16 steps old.
        assert (step, guard._wards[0].steps) == (31, 36)
        assert same(states[11 - 5], training.everything())
        assert guard.verdicts[-1].note.endswith("to the state of 25 steps ago")
        assert "to the state of" in guard.verdicts[-1].note
        assert guard.last_step_skipped
        assert tensors_of(training) == held, "written in place"
        training.run(range(100, 130))
        assert guard.counts["rollback"] == 1


def test_the_state_gone_back_to_is_old_enough_to_be_known_as_good():
    training = Training(adamw)
    with Guard(rollback_every=10).attach(training.optimizer, training.model) as guard:
        states, step = broken(guard, training, at=22)
        (age,) = [int(word) for word in guard.verdicts[-1].note.split() if word.isdigit()][-1:]
        assert age >= 16
        assert same(states[step - age], training.everything())


def test_the_learning_rate_can_be_lowered_and_the_scheduler_goes_back():
    training = Training(adamw)
    scheduler = torch.optim.lr_scheduler.LambdaLR(training.optimizer, lambda t: 1 / (t + 1))
    guard = Guard(rollback_every=10, scheduler=scheduler, lr_factor=0.5)
    with guard.attach(training.optimizer, training.model):
        for batch in range(60):
            if batch == 30:
                training.model[0].weight.data[0, 0] = float("nan")
            training.step(batch)
            if guard.counts["rollback"]:
                break
            scheduler.step()
        kept = guard._snapshots.steps[-1]
        assert scheduler.last_epoch == kept - 1
        assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.01 / kept)
        scheduler.step()
        assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.01 / (kept + 1))


@pytest.mark.parametrize("asked", [True, False])
def test_random_generators_go_back_where_asked(asked):
    training = Training(adamw)
    guard = Guard(rollback_every=100, restore_rng=asked)
    with guard.attach(training.optimizer, training.model):
        training.step(0)  # the state is kept before this step's update
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        guard._snapshots._kept.clear()
        guard._snapshots.take(1)
        first = torch.rand(3), random.random(), np.random.rand()
        training.model[0].weight.data[0, 0] = float("nan")
        training.run(range(1, 7))
        assert guard.counts["rollback"] == 1
        again = torch.rand(3), random.random(), np.random.rand()
    assert (same(first[0], again[0]), first[1:] == again[1:]) == (asked, asked)


def test_it_gives_up_with_a_clear_error():
    training = Training(adamw)
    guard = Guard(rollback_every=10, max_rollbacks=2)
    with guard.attach(training.optimizer, training.model):
        training.run(range(20))
        with pytest.raises(RollbackFailed, match="2 rollbacks in 100 steps did not help"):
            training.run((batch, NAN) for batch in range(20, 200))
        assert guard.counts["rollback"] == 2
        assert guard.counts["skip"] == 15
    assert issubclass(RollbackFailed, GuardStop)


def test_without_a_kept_state_it_says_so():
    training = Training(adamw)
    guard = Guard(max_skips=1)
    text = "no good state was kept yet"
    attached = guard.attach(training.optimizer, training.model)
    with attached, pytest.raises(RollbackFailed, match=text):
        training.run([(0, NAN), (1, NAN)])
    training = Training(adamw)
    guard = Guard(lambda _: "rollback")
    text = "no state is kept: name rollback in action="
    attached = guard.attach(training.optimizer, training.model)
    with attached, pytest.raises(RollbackFailed, match=text):
        training.step((0, NAN))


def test_a_second_try_goes_further_back():
    training = Training(adamw)
    guard = Guard({"spike": "rollback"}, rule=1e3, rollback_every=20, keep=3)
    with guard.attach(training.optimizer, training.model):
        training.run(range(60))
        assert guard._snapshots.steps == [1, 21, 41]
        training.step((60, BAD))
        training.step((61, BAD))
        ages = [int(v.note.split("of ")[1].split()[0]) for v in guard.verdicts]
    assert ages == [61 - 41, 62 - 21]


def test_a_diverging_loss_rolls_back():
    training = Training(adamw)
    with Guard(rollback_every=10).attach(training.optimizer, training.model) as guard:
        for batch in range(100):
            guard.tell_loss((3.0 - 0.02 * batch) if batch < 80 else 2.6)
            training.step(batch)
            if guard.counts["rollback"]:
                break
    assert 80 < batch < 90
    assert guard.verdicts[-1].cause == "divergence"
    assert guard.verdicts[-1].signal == "loss"


def test_late_losses_serve_too():
    training = Training(adamw)
    with Guard(rollback_every=10).attach(training.optimizer, training.model) as guard:
        for batch in range(100):
            training.step(batch)
            guard.tell_loss(torch.tensor(1.0 if batch < 60 else 40.0), late=True)
            if guard.counts["rollback"]:
                break
        assert 60 < batch < 70
        assert guard.counts["skip"] == 0


def test_several_optimizers_losses_are_not_held_against_them():
    first, second = Training(adamw, seed=1), Training(adamw, seed=2)
    with Guard().attach([first.optimizer, second.optimizer]) as guard:
        for batch in range(100):
            guard.tell_loss(1.0 if batch < 60 else 1.9)
            first.step(batch)
            second.step(batch)
        assert not guard.counts["rollback"]


def after(losses, values):
    for value in values:
        losses.add(value)
        found = losses.diverged()
        if found is not None:
            return found
    return None


rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (2.0 + 0.1 * rng.standard_normal(300), None),
        (np.linspace(4.0, 1.0, 300) + 0.1 * rng.standard_normal(300), None),
        (4.0 * 0.95 ** np.arange(400), None),
        (np.r_[4.0 * 0.9 ** np.arange(300), 1e-9 * 10 ** rng.standard_normal(300)], None),
        (np.r_[np.full(100, 2.0), [50.0], np.full(100, 2.0)], None),
        (np.r_[np.linspace(4, 1, 200), np.full(20, 2.6)], "half of the way lost"),
        (np.r_[2 + 0.05 * rng.standard_normal(200), 3 + 0.05 * rng.standard_normal(20)], "shifted"),
    ],
    ids=["noise", "falling", "decay", "trembling at 1e-9", "one spike", "half", "shift"],
)
def test_what_divergence_is(values, why):
    found = after(Losses(), values.tolist())
    assert (found and found[2]) == why


def test_after_a_raised_rate_less_is_needed():
    losses = Losses()
    noise = 0.05 * rng.standard_normal(200)
    assert after(losses, (2.0 + noise).tolist()) is None
    assert losses.is_bad() is False
    losses.raised()
    found = after(losses, [2.2] * 20)
    assert found is not None
    assert found[2] == "after a raised learning rate"
    assert losses.is_bad()


def test_it_is_told_once():
    losses = Losses()
    after(losses, np.linspace(4, 1, 100).tolist())
    told = [after(losses, [3.0]) for _ in range(50)]
    assert sum(found is not None for found in told) == 1


def test_negative_losses_are_not_judged_unless_asked():
    for asked, expected in ((None, 0), (True, 1)):
        training = Training(adamw)
        guard = Guard(rollback_every=10, divergence=asked)
        with guard.attach(training.optimizer, training.model):
            for batch in range(120):
                guard.tell_loss(-1.0 + 0.01 * (batch % 3) if batch < 80 else 3.0)
                training.step(batch)
                if guard.counts["rollback"] or guard.counts["skip"]:
                    break
        assert bool(guard.counts["rollback"] or guard.counts["skip"]) == bool(expected)


def test_states_can_be_kept_elsewhere():
    training = Training(adamw)
    with Guard(rollback_every=5, state_device="cpu").attach(training.optimizer) as guard:
        training.run(range(12))
        assert all(t.device.type == "cpu" for s in guard._snapshots._kept for t in s.tensors)
