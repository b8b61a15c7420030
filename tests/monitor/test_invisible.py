"""The training is the same with and without the monitor, and nothing is left behind."""

import copy
import gc
import io
import random
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_internals
from torch.nn.utils import clip_grad

import torchvitals

from .training import batches, loss_of, make_net, train

OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.01),
    "foreach": lambda ps: torch.optim.Adam(ps, lr=0.01, foreach=True),
    "fused": lambda ps: torch.optim.AdamW(ps, lr=0.01, fused=True),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01),
}


class WithDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.dropout = make_net(), nn.Dropout(0.3)

    def forward(self, x):
        return self.dropout(self.net(x))


def losses(tmp_path, make_optimizer, watch, **options):
    torch.manual_seed(3)
    model = WithDropout()
    optimizer = make_optimizer(model.parameters())
    data = batches(12)
    torch.manual_seed(4)
    if not watch:
        return train(model, optimizer, data, clip=1.0)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", **options) as monitor:
        out = train(model, optimizer, data, clip=1.0)
        assert monitor.step_number == 12
    return out


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", [
    {"every": 1, "updates": "exact", "histograms": "full"},
    {"every": 3},
    {"every": 1, "backend": "torch"},
], ids=["everything", "defaults", "torch"])  # fmt: skip
def test_losses_are_bit_identical(tmp_path, name, options):
    plain = losses(tmp_path, OPTIMIZERS[name], watch=False)
    assert losses(tmp_path, OPTIMIZERS[name], watch=True, **options) == plain


def test_no_random_number_is_drawn(tmp_path):
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters())
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, updates="exact"):
        train(model, optimizer, batches(3))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]


def hooks_of(model, optimizer):
    count = sum(
        len(table)
        for m in model.modules()
        for name, table in vars(m).items()
        if name.endswith("_hooks") and table
    )
    count += sum(
        len(table) for name, table in vars(optimizer).items() if name.endswith("_hooks") and table
    )
    count += sum(
        len(table) for name, table in vars(module_internals).items() if name.endswith("_hooks")
    )
    return count + sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())


def inner_clip_functions():
    return [
        dict(zip(f.__code__.co_freevars, f.__closure__, strict=True))["func"].cell_contents
        for f in (clip_grad.clip_grad_norm_, clip_grad.clip_grad_value_)
    ]


def test_closing_leaves_no_hook_and_no_reference(tmp_path):
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters())
    before, clips = hooks_of(model, optimizer), inner_clip_functions()
    monitor = torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1)
    train(model, optimizer, batches(2))
    assert hooks_of(model, optimizer) > before
    assert inner_clip_functions() != clips
    monitor.close()
    monitor.close()  # again does nothing
    assert hooks_of(model, optimizer) == before
    assert inner_clip_functions() == clips
    gone = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert gone() is None
    train(model, optimizer, batches(1))


def test_monitors_may_close_in_any_order(tmp_path):
    clips = inner_clip_functions()
    pairs = []
    for number in range(3):
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = tmp_path / str(number)
        pairs.append((torchvitals.watch(model, optimizer, run=run, every=1), model, optimizer))
    for position in (1, 0, 0):
        monitor, *_ = pairs.pop(position)
        monitor.close()
        for other, model, optimizer in pairs:
            train(model, optimizer, batches(1), clip=1.0)
            assert other.history.series("gradient/[root module]/clip_ratio").values[-1] > 0
    assert inner_clip_functions() == clips


def test_model_copies_saves_and_pickles_as_before(tmp_path):
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters())
    keys = list(model.state_dict())
    size = len(saved(model))
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        train(model, optimizer, batches(2))
        assert list(model.state_dict()) == keys
        twin = copy.deepcopy(model)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters()))  # noqa: B905
        assert len(saved(model)) == size
        assert "torchvitals" not in saved(model).decode("latin1")
        other = copy.deepcopy(optimizer)
        assert "torchvitals" not in saved(other.state_dict()).decode("latin1")
        # The copy is not watched: stepping it adds no step.
        twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        train(twin, twin_optimizer, batches(3))
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.steps().tolist() == [1, 2]


def saved(thing):
    buffer = io.BytesIO()
    torch.save(thing, buffer)
    return buffer.getvalue()


def test_between_monitored_steps_nothing_is_installed_or_measured(tmp_path):
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters())
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=100) as monitor:
        train(model, optimizer, batches(2))  # step 1 is monitored, in step 2 FLOPs are counted
        spent = monitor.overhead_s
        assert spent > 0
        assert not module_internals._global_forward_hooks
        assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
        train(model, optimizer, batches(20))
        assert monitor.overhead_s == spent
        assert monitor.history.steps("gradient").tolist() == [1]


def test_exceptions_pass_through(tmp_path):
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters())

    def fail():
        with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
            loss_of(model, batches(1)[0]).backward()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "failed"
        assert "ZeroDivisionError" in history.events("error")[0].text
