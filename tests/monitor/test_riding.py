"""Gradients measured together with the weights' change: same values, never values of a scratch."""

import pytest
import torch

import torchvitals
from torchvitals.record import Key

from .training import batches, loss_of, make_net


class Moody(torch.optim.SGD):
    """Leaves gradients alone until it is told to use them as scratch space."""

    scratch = False

    def step(self, closure=None):
        super().step(closure)
        if self.scratch:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(100.0)


def watched(model, optimizer, path, **kwargs):
    return torchvitals.watch(model, optimizer, run=path, every=1, updates="exact", **kwargs)


def step(model, optimizer, x, clip=None):
    loss_of(model, x).backward()
    norm = float(model.head.weight.grad.double().norm())
    if clip:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return norm


def norms_in(monitor):
    key = Key("gradient", "head.weight", "norm")
    return {n: monitor.history.row(n).get(key) for n in range(1, monitor.step_number + 1)}


@pytest.mark.parametrize("clip_at", [None, 4])
def test_later_steps_have_the_gradient_of_before_the_step(tmp_path, clip_at):
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(model, optimizer, tmp_path / "run") as monitor:
        expected = {
            n: step(model, optimizer, x, clip=1e-3 if n == clip_at else None)
            for n, x in enumerate(batches(6), start=1)
        }
        assert monitor._riding == (clip_at != 6)
        found = norms_in(monitor)
        histogram = monitor.history.histogram("head.weight", "gradient")
    assert found == pytest.approx(expected, rel=1e-5)
    assert histogram.counts.sum() == 5 * model.head.weight.numel()  # the first was stored alone


def test_an_optimizer_that_starts_writing_into_gradients_is_noticed(tmp_path):
    model = make_net()
    optimizer = Moody(model.parameters(), lr=0.01)
    expected = {}
    with watched(model, optimizer, tmp_path / "run") as monitor:
        for n, x in enumerate(batches(7), start=1):
            optimizer.scratch = n >= 4
            expected[n] = step(model, optimizer, x)
        found = norms_in(monitor)
    assert found.pop(4) is None  # it could not be known: not measured rather than wrong
    expected.pop(4)
    assert found == pytest.approx(expected, rel=1e-5)


def test_frozen_parameters_and_missing_gradients_do_not_ride(tmp_path):
    model = make_net()
    model.scale.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched(model, optimizer, tmp_path / "run") as monitor:
        expected = {n: step(model, optimizer, x) for n, x in enumerate(batches(4), start=1)}
        assert norms_in(monitor) == pytest.approx(expected, rel=1e-5)
