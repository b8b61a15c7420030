"""Every optimizer of torch.optim: a skipped step leaves no trace, the next knows nothing of it."""

import inspect

import pytest
import torch
from torch import nn

from torchvitals import Guard
from torchvitals.record import ConfigError

from .training import BAD, NAN, Training, same

CLASSES = sorted(
    (
        one
        for one in vars(torch.optim).values()
        if inspect.isclass(one)
        and issubclass(one, torch.optim.Optimizer)
        and one is not torch.optim.Optimizer
    ),
    key=lambda one: one.__name__,
)
REFUSED = {"LBFGS"}
NEEDS = {"SparseAdam": "sparse", "Muon": "matrices"}
MORE = {
    "SGD": [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}],
    "Adam": [{"amsgrad": True}],
    "RMSprop": [{"momentum": 0.9, "centered": True}],
    "ASGD": [{"t0": 0}],
}


def ways(cls):
    """Its settings that change how it steps, each with the settings' names as an id."""
    given = inspect.signature(cls).parameters
    options = [{}, *MORE.get(cls.__name__, [])]
    options += [{name: True} for name in ("foreach", "fused", "maximize") if name in given]
    options += [{"foreach": False}] if "foreach" in given else []
    if "fused" in given and cls.__name__ == "SGD":
        options.append({"fused": True, "momentum": 0.9})
    if "fused" in given and "foreach" in given and cls.__name__ == "Adam":
        options.append({"fused": True, "amsgrad": True})
    return options


CASES = [
    pytest.param(
        cls, options, id="-".join([cls.__name__, *(f"{k}={v}" for k, v in options.items())])
    )
    for cls in CLASSES
    if cls.__name__ not in REFUSED
    for options in ways(cls)
]


class Looked(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 2, sparse=True)

    def forward(self, x):
        rows = (x.nan_to_num(0.0).abs() * 5).long().clamp(max=11)
        # A NaN in the input must reach the gradient of a lookup, too.
        return self.table(rows).mean(1) + (x - x).sum()


def make(cls, options):
    kind = NEEDS.get(cls.__name__)
    torch.manual_seed(1)
    if kind == "sparse":
        model = Looked()
    elif kind == "matrices":
        model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False))
    else:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def groups(parameters):
        parameters = list(parameters)
        half = len(parameters) // 2
        made = [{"params": parameters[half:]}]
        if half:
            made.insert(0, {"params": parameters[:half], "lr": 0.003})
        return cls(made, lr=0.01, **options)

    return Training(groups, model)


@pytest.mark.parametrize("kind", [NAN, BAD])
@pytest.mark.parametrize(("cls", "options"), CASES)
def test_a_skipped_step_never_was(cls, options, kind):
    guarded, clean = make(cls, options), make(cls, options)
    rule = 1e3 if kind == BAD else "mean_std"
    with Guard("skip", rule=rule).attach(guarded.optimizer, guarded.model) as guard:
        guarded.run(range(4))
        before = guarded.everything()
        guarded.step((4, kind))
        assert guard.last_step_skipped, guard.last_norm
        assert same(before, guarded.everything())
        guarded.run(range(5, 8))
        assert guard.counts["skip"] == 1
    clean.run([0, 1, 2, 3, 5, 6, 7])
    assert same(clean.everything(), guarded.everything())


@pytest.mark.parametrize(("cls", "options"), CASES)
def test_the_very_first_step_can_be_skipped(cls, options):
    guarded, clean = make(cls, options), make(cls, options)
    with Guard("skip").attach(guarded.optimizer, guarded.model):
        before = guarded.everything()
        guarded.step((0, NAN))
        assert same(before, guarded.everything())
        guarded.run([1, 2])
    clean.run([1, 2])
    assert same(clean.everything(), guarded.everything())


FUSED = [case for case in CASES if case.values[1].get("fused")]


@pytest.mark.parametrize("kind", [NAN, BAD])
@pytest.mark.parametrize(("cls", "options"), FUSED)
def test_a_fused_optimizer_skips_by_itself(cls, options, kind):
    """decide="device": the step is handed `found_inf`; nothing is taken aside but in the first."""
    guarded, clean = make(cls, options), make(cls, options)
    rule = 1e3 if kind == BAD else "mean_std"
    guard = Guard("skip", rule=rule, decide="device").attach(guarded.optimizer, guarded.model)
    with guard:
        guarded.run(range(4))
        before = guarded.everything()
        loss = guarded.loss((4, kind))
        loss.backward()
        guarded.optimizer.step()
        assert guard._pending, "the host must not have asked yet"
        assert guard.last_step_skipped
        assert all(p.grad is not None for p in guarded.model.parameters())
        guarded.optimizer.zero_grad()
        assert same(before, guarded.everything())
        assert not hasattr(guarded.optimizer, "found_inf")
        assert not hasattr(guarded.optimizer, "grad_scale")
        guarded.run(range(5, 8))
    clean.run([0, 1, 2, 3, 5, 6, 7])
    assert same(clean.everything(), guarded.everything())
    assert guard.counts["skip"] == 1


@pytest.mark.parametrize(
    "cls", [c for c in CLASSES if "capturable" in inspect.signature(c).parameters]
)
def test_capturable_steps_are_skipped(cls):
    """They step on accelerators only; a skipped step touches nothing anywhere."""
    training = Training(lambda parameters: cls(parameters, capturable=True))
    with Guard("skip").attach(training.optimizer, training.model) as guard:
        before = training.everything()
        training.step((0, NAN))
        assert guard.last_step_skipped
        assert same(before, training.everything())


def test_lbfgs_is_refused():
    model = nn.Linear(2, 1)
    with pytest.raises(ConfigError, match="LBFGS can't be guarded: one step"):
        Guard().attach(torch.optim.LBFGS(model.parameters()), model)


def test_every_class_is_tested_or_refused():
    assert {case.values[0].__name__ for case in CASES} | REFUSED == {c.__name__ for c in CLASSES}
