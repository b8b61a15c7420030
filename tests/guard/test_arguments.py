"""Every argument is checked, with words that say what is wrong and what to do."""

import pytest
import torch
from torch import nn

from torchvitals import Guard, watch
from torchvitals.record import ConfigError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"action": "jump"}, "action must be one of skip, clip, rollback, stop, warn, .*'jump'"),
        ({"action": 3}, "action must be one of .*, got 3"),
        ({"action": {"nan": "skip"}}, "action knows the causes non_finite, spike, divergence, got"),
        ({"action": {"spike": "jump"}}, "action for spike must be one of .*, got 'jump'"),
        ({"action": {"non_finite": "clip"}}, "non_finite can't be clip: NaN × 0 is NaN"),
        ({"action": {"divergence": "skip"}}, "divergence can't be skip: the weights are off"),
        ({"escalate": "skip"}, "escalate must be one of rollback, stop, warn, accept"),
        ({"max_skips": 0}, "max_skips must be at least 1, got 0"),
        ({"within": 0}, "within must be at least 1, got 0"),
        ({"max_skips": 9, "within": 5}, "max_skips=9 steps can't be skipped within 5 steps"),
        ({"k": -1.0}, "k must be positive and finite, got -1.0"),
        ({"warmup": 0}, "warmup must be at least 2, got 0"),
        ({"rule": "sigma"}, "rule must be one of .*, got 'sigma'"),
        ({"rule": "adagc", "action": "skip"}, "rule='adagc' scales single tensors down"),
        ({"on_spike": 3}, "on_spike must be callable, got 3"),
        ({"scaler": 1024.0}, "scaler must be a torch.amp.GradScaler, got float"),
        ({"scheduler": 3}, "scheduler must have state_dict and load_state_dict, got int"),
        ({"rollback_every": 0}, "rollback_every must be at least 1, got 0"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"lr_factor": 0.0}, "lr_factor must be positive and finite, got 0.0"),
        ({"lr_factor": 2.0}, "lr_factor must be at most 1, got 2.0"),
        ({"max_rollbacks": 0}, "max_rollbacks must be at least 1, got 0"),
        ({"state_device": "moon"}, "state_device: "),
        ({"timeout_s": 0.0}, "timeout_s must be positive and finite, got 0.0"),
        ({"decide": "later"}, "decide must be 'auto', 'host' or 'device', got 'later'"),
        ({"decide": "device", "rule": "zclip"}, "decide='device' serves rule='mean_std' or"),
        ({"decide": "device", "action": "clip"}, "decide='device' serves rule='mean_std' or"),
        ({"backend": "cuda"}, "backend must be 'auto', 'native', 'triton' or 'torch', got 'cuda'"),
    ],
)
def test_wrong_arguments(options, text):
    with pytest.raises(ConfigError, match=text):
        Guard(**options)


def test_wrong_things_to_attach_to():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        ConfigError, match=r"optimizer must be a torch.optim.Optimizer .*got Linear"
    ):
        Guard().attach(model)
    with pytest.raises(ConfigError, match="the guard needs an optimizer to stand before"):
        Guard().attach([])
    with pytest.raises(ConfigError, match=r"model must be a torch.nn.Module, got str"):
        Guard().attach(optimizer, ["model"])
    with pytest.raises(ConfigError, match=r"decide='device' needs an optimizer .*SGD"):
        Guard("skip", decide="device").attach(optimizer)
    with Guard().attach(optimizer) as guard, pytest.raises(ConfigError, match="attached already"):
        guard.attach(optimizer)


def test_watch_checks_before_it_makes_a_folder(tmp_path):
    model = nn.Linear(2, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for guard, optimizer, text in (
        ("jump", sgd, "action must be one of"),
        (3.5, sgd, "guard must be a Guard, an action or True, got 3.5"),
        ("skip", torch.optim.LBFGS(model.parameters()), "LBFGS can't be guarded"),
        ("skip", None, "the guard needs an optimizer"),
    ):
        with pytest.raises(ConfigError, match=text):
            watch(model, optimizer, run=tmp_path / "run", guard=guard)
        assert not (tmp_path / "run").exists()


def test_rules_that_clip_clip_by_default():
    assert Guard().policy.actions == {
        "non_finite": "skip", "spike": "skip", "divergence": "rollback",
    }  # fmt: skip
    for rule in ("zclip", "adagc"):
        assert Guard(rule=rule).policy.actions["spike"] == "clip"
