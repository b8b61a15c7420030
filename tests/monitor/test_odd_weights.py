"""Weights that lie in memory in an order of their own, that are complex, or that are empty."""

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals

BACKENDS = ["native", "torch"]


def gaps():
    return torch.randn(10, 10)[::2, ::3]


def across():
    return torch.randn(6, 4).t()


def channels_last():
    return torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)


class Model(nn.Module):
    """One odd weight, and an ordinary layer beside it."""

    def __init__(self, weight):
        super().__init__()
        self.odd = nn.Parameter(weight)
        self.plain = nn.Linear(4, 4)

    def forward(self, x):
        return self.plain(x).square().mean() + self.odd.abs().square().sum()


class Turning(torch.optim.Optimizer):
    """Turns complex weights without making them longer."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.is_complex():
                p.mul_(torch.polar(torch.tensor(1.0), torch.tensor(0.1)))
            else:
                p.sub_(p.grad, alpha=0.1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("every", [1, 5])
@pytest.mark.parametrize("make", [gaps, across, channels_last])
def test_order_in_memory_changes_nothing(tmp_path, make, every, backend):
    torch.manual_seed(0)
    model = Model(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    changes, sizes = [], []
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=every, updates="exact", backend=backend
    ) as monitor:
        for _ in range(6):
            before = model.odd.detach().clone()
            model(torch.randn(2, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
            changes.append((model.odd.detach() - before).double().norm().item())
            sizes.append(model.odd.detach().double().norm().item())
        history = monitor.history
        steps = history.series("update/odd/norm").steps
        assert steps.tolist() == [k for k in range(1, 7) if k == 1 or k % every == 0]
        for key, want in (("update/odd/norm", changes), ("parameter/odd/norm", sizes)):
            found = history.series(key).values
            np.testing.assert_allclose(found, np.array(want)[steps - 1], rtol=2e-5)
        # Plain gradient descent, seen element by element.
        np.testing.assert_allclose(history.series("update/odd/cosine").values, 1.0, rtol=1e-5)
        assert history.series("update/plain.weight/norm").steps.tolist() == steps.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["exact", "sampled"])
@pytest.mark.parametrize("kind", [Turning, torch.optim.SGD])
def test_of_complex_weights_the_change_counts(tmp_path, kind, mode, backend):
    torch.manual_seed(0)
    model = Model(torch.randn(50, dtype=torch.complex64))
    optimizer = kind(model.parameters())
    changes, slopes = [], []
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates=mode, backend=backend
    ) as monitor:
        for _ in range(5):
            before = model.odd.detach().clone()
            model(torch.randn(2, 4)).backward()
            optimizer.step()
            slopes.append(model.odd.grad.clone())
            optimizer.zero_grad()
            changes.append(model.odd.detach() - before)
        history = monitor.history
        want = [change.to(torch.complex128).abs().norm().item() for change in changes]
        np.testing.assert_allclose(history.series("update/odd/norm").values, want, rtol=1e-5)
        cosines = [
            -(d.conj() * g).real.sum().item() / (d.abs().norm() * g.abs().norm()).item()
            for d, g in zip(changes, slopes, strict=True)
        ]
        found = history.series("update/odd/cosine").values
        np.testing.assert_allclose(found, cosines, rtol=1e-4, atol=1e-6)
        assert history.series("update/odd/frozen").values.max() == 0
        size = model.odd.detach().to(torch.complex128).abs().norm().item()
        assert history.series("parameter/odd/norm").values[-1] == pytest.approx(size, rel=1e-6)
        assert len(history.series("update/plain.weight/norm").values) == 5


@pytest.mark.parametrize("mode", ["exact", "sampled"])
def test_a_weight_without_elements_has_no_columns(tmp_path, mode):
    torch.manual_seed(0)
    model = Model(torch.zeros(0, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates=mode
    ) as monitor:
        for _ in range(3):
            model(torch.randn(2, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert {key.site for key in monitor.history.keys("update")} == {
            "plain.weight", "plain.bias", "plain", "[root module]"
        }  # fmt: skip
        assert np.isfinite(monitor.history.series("gradient/[root module]/norm").values).all()


class Failing(torch.optim.SGD):
    """Raises in its third step."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls == 3:
            raise RuntimeError("out of memory")
        return super().step(closure)


@pytest.mark.parametrize("mode", ["exact", "sampled"])
@pytest.mark.parametrize("clip", [False, True])
def test_a_step_that_raised_leaves_nothing_to_the_next(tmp_path, mode, clip):
    model = nn.Linear(4, 4)
    optimizer = Failing(model.parameters(), lr=0.1)
    norms = []
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates=mode
    ) as monitor:
        for k in range(1, 7):
            model(k * torch.ones(2, 4)).sum().backward()
            norm = model.weight.grad.norm().item()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
            try:
                optimizer.step()
            except RuntimeError:
                assert k == 3
            else:
                norms.append(norm)
            optimizer.zero_grad()
        found = monitor.history.series("gradient/weight/norm")
        np.testing.assert_allclose(found.values, norms, rtol=1e-6)
        ratios = monitor.history.series("update/weight/lr_ratio").values
        np.testing.assert_allclose(ratios, 0.1, rtol=1e-5)
