"""Taps: every call is told, nothing is changed, and no copy of the model carries one."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import _dynamo, nn
from torch.nn.modules import module as internals

import torchvitals
from torchvitals.probes import taps
from torchvitals.probes.compiled import SLOT, anything_compiled, is_compiled

pytestmark = [
    # torch's own, when it loads its compiler.
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def nothing_compiled(monkeypatch):
    """As in a process that never compiled anything."""
    _dynamo.reset()
    _dynamo.utils.counters.clear()
    assert not anything_compiled()


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def tapped(model):
    seen = []
    found = taps.Taps(model.modules(), lambda module, output: seen.append((module, output)))
    found.open()
    return found, seen


def slots(model):
    return [module.__dict__[SLOT] for module in model.modules() if SLOT in module.__dict__]


def test_every_call_is_told_with_what_it_put_out():
    model, x = net(), torch.randn(5, 3)
    expected = model(x)
    found, seen = tapped(model)
    result = model(x)
    assert torch.equal(result, expected)
    assert [module for module, _ in seen] == [*model, model]
    assert seen[-1][1] is result
    found.close()
    model(x)
    assert len(seen) == 4
    assert not slots(model)


def test_hooks_of_the_user_run_as_ever_and_their_output_is_what_is_told():
    model, x = net(), torch.randn(5, 3)
    calls = []
    model[0].register_forward_pre_hook(lambda *_: calls.append("before"))
    model[0].register_forward_hook(lambda _m, _i, out: calls.append("after") or out + 1)
    plain = model[0](x)
    calls.clear()
    _, seen = tapped(model)
    assert torch.equal(model[0](x), plain)
    assert calls == ["before", "after"]
    assert torch.equal(seen[0][1], plain)


def test_an_error_of_the_model_passes_through_untold():
    model = net()
    _, seen = tapped(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.randn(5, 7))
    assert seen == []


def saved(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, copy.copy, saved, lambda model: pickle.loads(pickle.dumps(model))]
)
def test_copies_and_pickles_carry_none(twin):
    model = net()
    _, seen = tapped(model)
    other = twin(model)
    assert SLOT not in vars(other)
    if twin is not copy.copy:  # that one shares the layers
        assert not slots(other)
    assert model.state_dict().keys() == other.state_dict().keys()
    assert len(slots(model)) == 4
    seen.clear()
    other(torch.randn(2, 3))
    assert model not in [module for module, _ in seen]


def test_what_somebody_else_puts_there_stays():
    model = net()
    found, _ = tapped(model)
    model.compile(backend="eager")
    theirs = model._compiled_call_impl
    assert is_compiled(model)
    assert not is_compiled(model[0])
    found.close()
    assert slots(model) == [theirs]
    assert not found.open()
    assert slots(model) == [theirs]
    assert not found.usable


def test_not_once_something_was_compiled():
    found, _ = tapped(net())
    assert found.usable
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert not found.usable


@pytest.mark.parametrize(("several", "spread", "usable"), [(1, 0, 1), (2, 0, 0), (2, 1, 1)])
def test_not_where_dataparallel_may_be_at_work(monkeypatch, several, spread, usable):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: several)
    monkeypatch.setattr(taps.distributed, "is_initialized", lambda: bool(spread))
    assert tapped(net())[0].usable is bool(usable)


def one_step(model, optimizer):
    loss = model(torch.ones(4, 3)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def test_a_watched_model_is_tapped_on_monitored_steps_only(tmp_path):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=3, clocks=False):
        found = []
        for _ in range(6):
            found.append(len(slots(model)))
            assert not internals._global_forward_hooks
            one_step(model, optimizer)
    # The first step is always measured; the layers and the model itself are tapped.
    assert found == [4, 0, 4, 0, 0, 4]
    assert not slots(model)


def test_replicas_of_dataparallel_call_themselves(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, clocks=False):
        replica = model[0]._replicate_for_data_parallel()
        assert SLOT not in vars(replica)
        assert not slots(model)
        one_step(model, optimizer)
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.steps("activation").tolist() == [1]


def in_place(model):
    model.compile(backend="eager")
    return model


def wrapped(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("compiled", [wrapped, in_place])
def test_a_model_compiled_after_watch_trains_as_ever_and_the_run_says_so(tmp_path, compiled):
    def losses(path):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = None
        if path is not None:
            monitor = torchvitals.watch(
                model, optimizer, run=path, every=2, clocks=False, inputs=False
            )
        found = [one_step(model, optimizer), one_step(model, optimizer)]
        fast = compiled(model)
        found += [one_step(fast, optimizer) for _ in range(6)]
        if monitor is not None:
            monitor.close()
        assert len(slots(model)) == (compiled is in_place)
        return found

    bare = losses(None)
    _dynamo.reset()
    _dynamo.utils.counters.clear()
    assert losses(tmp_path / "run") == bare
    with torchvitals.open_run(tmp_path / "run") as history:
        assert len(history.events("not_seen")) == 1
        assert history.steps("gradient").tolist() == [1, 2, 4, 6, 8]


def scripted(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(model)


@pytest.mark.parametrize("made", [torch.fx.symbolic_trace, scripted])
def test_traced_and_scripted_models_are_tapped_too(tmp_path, made):
    model, plain = made(net()), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = torch.optim.SGD(plain.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        for _ in range(3):
            assert one_step(model, optimizer) == pytest.approx(one_step(plain, expected))
            copy.deepcopy(model)(torch.ones(4, 3))
    assert not slots(model)
