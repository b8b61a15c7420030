"""Taps: every call is told, nothing is changed, and no copy of the model carries one."""

import copy
import gc
import io
import pickle
import sys
import warnings
import weakref
from types import BuiltinFunctionType

import pytest
import torch
from torch import _dynamo, nn
from torch.nn.modules import module as internals

import torchvitals
from torchvitals.probes import taps
from torchvitals.probes.compiled import SLOT, anything_compiled, is_compiled
from torchvitals.probes.waiting import NUMBER, Site, Waiting
from torchvitals.stats.native.library import kernel

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


@pytest.fixture(autouse=True, params=["C", "Python"])
def kind(request, monkeypatch):
    """Taps of the kernel, and those of a machine without a compiler."""
    if request.param == "Python":
        monkeypatch.setattr(taps, "tap_maker", lambda name, most: None)
    elif kernel() is None:
        pytest.fail("the kernel was not built; run make test")
    return request.param


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


def test_which_kind_it_is(kind):
    model = net()
    tapped(model)
    for tap in slots(model):
        assert isinstance(tap, BuiltinFunctionType) == (kind == "C")
        assert not is_compiled(model)


class Waits:
    """A model whose layers may all wait, tapped."""

    def __init__(self):
        self.model, self.waiting, self.seen = net(), Waiting(), []
        for line, layer in enumerate(self.model):
            self.waiting.settle(Site(f"{line}", line, (0.0, 0.0), None, layer, alone=True))
        self.taps = taps.Taps(
            self.model.modules(),
            lambda module, _: self.seen.append(module),
            self.waiting,
            {self.model},
        )
        self.taps.open()

    def __call__(self, *args, **kwargs):
        self.seen.clear()
        return self.model(*args, **kwargs)


def test_small_outputs_wait_and_the_root_is_told():
    waits, x = Waits(), torch.randn(5, 3)
    result = waits(x)
    assert waits.seen == [waits.model]
    sites, tensors, lost = waits.waiting.take()
    assert [site.module for site in sites] == list(waits.model)
    assert tensors[-1] is result
    assert not lost
    waits(x)[0] = 0.0
    *_, lost = waits.waiting.take()
    assert [site.line for site in lost] == [2]


def test_what_can_not_wait_is_told():
    waits, x = Waits(), torch.randn(5, 3)
    waits.model.eval()
    waits(x)
    assert waits.seen == [*waits.model, waits.model]
    waits.model.train()
    torch.func.grad(lambda x: waits(x).sum())(x)
    assert waits.seen == [*waits.model, waits.model]
    waits.seen.clear()
    torch.utils.checkpoint.checkpoint(waits.model, x, use_reentrant=False).sum().backward()
    # The root's call, then those inside the backward pass, which ends with what it needs.
    assert waits.seen[:3] == [waits.model, *waits.model[:2]]
    waits.waiting.take()
    for _ in range(NUMBER // 3 + 1):
        waits(x)
    assert len(waits.waiting.tensors) == NUMBER
    assert waits.seen == [*list(waits.model)[NUMBER % 3 :], waits.model]


def counts(held):
    gc.collect()
    return [sys.getrefcount(one) for one in held]


def test_nothing_is_kept_or_freed_too_often():
    waits, x = Waits(), torch.randn(5, 3)
    waits(x)
    waits.waiting.take()
    held = [*waits.model, *waits.waiting.light.values(), x, torch.Tensor, waits.model]

    before = counts(held)
    for _ in range(500):
        waits(input=x)
        waits.model.eval()
        output = waits(x)
        assert sys.getrefcount(output) == 2
        with pytest.raises(RuntimeError):
            waits(x[:, :2])
        waits.model.train()
        waits.waiting.take()
    del output
    assert counts(held) == pytest.approx(before, abs=50)
    # The taps hold the model and the model holds them: a ring that can be collected.
    gone = weakref.ref(waits.model)
    del waits, held
    gc.collect()
    assert gone() is None


def test_what_a_teller_raises_comes_out():
    model = net()

    def seen(module, output):
        raise KeyError("told")

    found = taps.Taps(model.modules(), seen)
    found.open()
    with pytest.raises(KeyError, match="told"):
        model(torch.randn(5, 3))


class Called(nn.Linear):
    """A layer whose own call is traced, so that a tap would be, too."""

    def __call__(self, x):
        return super().__call__(x)


@pytest.mark.parametrize("every", [1, 2])
def test_a_function_compiled_in_the_midst_of_a_step_is_one_graph(tmp_path, every):
    """Taps must be out of sight by then: what is in C can't be traced."""
    model = nn.Sequential(Called(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    @torch.compile(backend=backend, fullgraph=True)
    def loss_of(x):
        return model(x).square().mean()

    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=every, clocks=False, inputs=False
    ):
        for _ in range(6):
            loss_of(torch.ones(4, 3)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(graphs) == 1
    assert not slots(model)
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.steps("gradient")[-1] == 6


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
