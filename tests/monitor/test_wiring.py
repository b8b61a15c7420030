"""Missing, stale and uncounted gradients."""

import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.record import Key

from .training import batches, make_net

ROOT = "[root module]"


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused, self.frozen = (nn.Linear(8, 8) for _ in range(3))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.used(x)


def value(monitor, step, stat, site=ROOT):
    return monitor.history.row(step).get(Key("gradient", site, stat))


def test_missing_gradients(tmp_path):
    model = Parts()
    optimizer = torch.optim.SGD(model.used.parameters(), lr=0.1)
    optimizer.add_param_group({"params": [model.unused.weight]})
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        x = batches(1)[0]
        model(x).square().mean().backward()
        optimizer.step()
        model.unused.requires_grad_(False)
        model(x).square().mean().backward()
        optimizer.step()
        sites = ["used.weight", "used.bias", "unused.weight", "unused.bias"]
        assert [value(monitor, 1, "missing", s) for s in sites] == [0, 0, 1, 1]
        # One that needs no gradient misses none.
        assert [value(monitor, 2, "missing", s) for s in sites] == [0, 0, 0, 0]
        assert not monitor.history.keys("gradient", "frozen", "missing")


def test_missing_in_no_optimizer_but_with_a_gradient(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD([model.scale], lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        model(batches(1)[0]).mean().backward()
        optimizer.step()
        assert value(monitor, 1, "missing", "head.weight") == 0


@pytest.mark.parametrize("clear", ["none", "zero", "never", "model"])
@pytest.mark.parametrize("num_micro", [1, 3])
def test_stale_gradients(tmp_path, clear, num_micro):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = iter(batches(20))
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for _ in range(3):
            for _ in range(num_micro):
                model(next(data)).square().mean().backward()
            optimizer.step()
            if clear == "model":
                model.zero_grad()
            elif clear != "never":
                optimizer.zero_grad(set_to_none=clear == "none")
        got = [value(monitor, step, "stale") for step in (1, 2, 3)]
        assert got == ([0, 1, 1] if clear == "never" else [0, 0, 0])
        counted = [value(monitor, step, "num_backward") for step in (1, 2, 3)]
        assert counted == [num_micro] * 3


def test_clearing_before_backward_and_a_step_without_one(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for step, x in enumerate(batches(4)):
            if step % 2 == 0:
                optimizer.zero_grad()
                model(x).square().mean().backward()
            optimizer.step()
        assert [value(monitor, k, "num_backward") for k in (1, 2, 3, 4)] == [1, 0, 1, 0]
        assert [value(monitor, k, "stale") for k in (1, 2, 3, 4)] == [0, None, 0, None]


def gan_round(models, optimizers, x, *, clear):
    g, c = models["g"], models["c"]
    if clear:
        optimizers[1].zero_grad()
    (c(x).mean() - c(g(x).detach()).mean()).backward()
    optimizers[1].step()
    if clear:
        optimizers[0].zero_grad()
    c(g(x)).mean().backward()  # leaves gradients in the critic, too
    optimizers[0].step()


@pytest.mark.parametrize("clear", [True, False])
def test_several_optimizers(tmp_path, clear):
    models = {"g": nn.Linear(8, 8), "c": nn.Linear(8, 1)}
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models.values()]
    with torchvitals.watch(models, optimizers, run=tmp_path / "run", every=1) as monitor:
        for x in batches(3):
            gan_round(models, optimizers, x, clear=clear)
        got = [value(monitor, step, "stale") for step in (1, 2, 3)]
        assert got == ([0, 0, 0] if clear else [0, 1, 1])
        assert [value(monitor, step, "num_backward") for step in (1, 2, 3)] == [2, 2, 2]


def test_an_optimizer_that_did_not_step_misses_nothing(tmp_path):
    models = {"g": nn.Linear(8, 8), "c": nn.Linear(8, 1)}
    g_opt, c_opt = (torch.optim.SGD(m.parameters(), lr=0.01) for m in models.values())
    with torchvitals.watch(models, [g_opt, c_opt], run=tmp_path / "run", every=1) as monitor:
        for x in batches(3):
            c_opt.zero_grad()
            models["c"](x).mean().backward()
            c_opt.step()
        assert value(monitor, 1, "missing", "c.weight") == 0
        assert value(monitor, 1, "missing", "g.weight") is None


def test_gradients_made_without_backward(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        parameters = list(model.parameters())
        grads = torch.autograd.grad(model(batches(1)[0]).mean(), parameters)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        optimizer.step()
        assert value(monitor, 1, "num_backward") is None
        assert value(monitor, 1, "missing", "scale") == 0


def test_closures_and_no_optimizer(tmp_path):
    model = make_net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = batches(1)[0]

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with torchvitals.watch(model, optimizer, run=tmp_path / "a", every=1) as monitor:
        optimizer.step(closure)
        assert value(monitor, 1, "num_backward") > 1
        assert value(monitor, 1, "stale") == 0
        assert value(monitor, 1, "missing", "scale") == 0
    with torchvitals.watch(model, run=tmp_path / "b", every=1, clocks=False) as monitor:
        model.zero_grad()
        model(x).mean().backward()
        monitor.step()
        model(x).mean().backward()
        monitor.step()
        assert [value(monitor, k, "stale") for k in (1, 2)] == [0, 1]
        assert value(monitor, 2, "missing", "scale") == 0


def test_backward_is_what_it_was(tmp_path):
    before = torch.autograd.backward
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=3, clocks=False):
        for step, x in enumerate(batches(6), start=1):
            assert (torch.autograd.backward is before) == (step not in {1, 3, 6})
            model(x).mean().backward()
            optimizer.step()
    assert torch.autograd.backward is before
