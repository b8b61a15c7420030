"""What goes into a checkpoint, and comes back."""

import json

import pytest
import torch

from torchvitals import Guard
from torchvitals.record import ConfigError

from .training import BAD, NAN, Training, same


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def batches(num):
    return [(b, BAD) if b % 17 == 16 else (b, NAN) if b % 23 == 22 else b for b in range(num)]


@pytest.mark.parametrize("rule", ["mean_std", "median_mad", "rolling", "zclip", "adagc", 1e3])
@pytest.mark.parametrize("cut", [5, 31, 48])
def test_decisions_after_a_restart_are_the_same(rule, cut):
    def run(training, guard, some):
        for batch in some:
            guard.tell_loss(training.loss(batch if isinstance(batch, int) else 0).detach())
            training.step(batch)

    whole, first = Training(adam), Training(adam)
    with Guard(rule=rule, max_skips=50).attach(whole.optimizer, whole.model) as one:
        run(whole, one, batches(80))
    with Guard(rule=rule, max_skips=50).attach(first.optimizer, first.model) as guard:
        run(first, guard, batches(80)[:cut])
        saved = json.loads(json.dumps(guard.state_dict()))
        kept = first.everything()
    second = Training(adam)
    second.model.load_state_dict(kept["model"])
    second.optimizer.load_state_dict(kept["optimizer"])
    again = Guard(rule=rule, max_skips=50)
    again.load_state_dict(saved)  # before attach
    with again.attach(second.optimizer, second.model):
        run(second, again, batches(80)[cut:])
        assert again.counts == one.counts
        assert same(again.state_dict(), one.state_dict())
    assert same(whole.everything(), second.everything())


def test_a_state_can_be_loaded_after_attaching():
    training = Training(adam)
    with Guard("skip").attach(training.optimizer, training.model) as guard:
        training.run(range(10))
        saved = guard.state_dict()
        training.run(range(10, 20))
        guard.load_state_dict(saved)
        assert guard.state_dict() == saved


def test_a_state_of_a_device_is_brought_home():
    training = Training(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True))
    host = Training(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True))
    with Guard("skip", decide="device").attach(training.optimizer, training.model) as guard:
        training.run(range(30))
        found = guard.state_dict()["wards"][0]["rule_state"]["seen"]
        guard.load_state_dict(guard.state_dict())
        training.step((30, BAD))
        assert guard.last_step_skipped
    with Guard("skip").attach(host.optimizer, host.model) as guard:
        host.run(range(30))
        assert guard.state_dict()["wards"][0]["rule_state"]["seen"] == pytest.approx(found)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s.update(version=2), "no state of a guard that this version knows: version 2"),
        (lambda s: s["wards"].append({}), r"saved with 2 optimizer\(s\), the guard has 1"),
        (lambda s: s["wards"][0].update(rule="zclip"), "saved with rule='zclip', the guard has"),
    ],
)
def test_a_state_of_something_else_is_refused(change, text):
    training = Training(adam)
    with Guard("skip").attach(training.optimizer) as guard:
        state = guard.state_dict()
        change(state)
        with pytest.raises(ConfigError, match=text):
            guard.load_state_dict(state)
