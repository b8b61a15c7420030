"""The gradient noise scale against a problem whose answer is known."""

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.probes.noise_scale import estimate

WIDTH, MICRO, NUM = 200, 4, 8


class Mean(nn.Module):
    """loss = mean (w − x)²/2 with x ~ N(1, s²): the gradient is w − mean(x), its noise s² I."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return (self.w - x).square().sum(dim=1).mean() / 2


def test_the_formula():
    signal, noise = estimate(small_sq=5.0 + 12.0 / 4, large_sq=5.0 + 12.0 / 32, small=4, large=32)
    assert signal == pytest.approx(5.0)
    assert noise == pytest.approx(12.0)


@pytest.mark.parametrize("divide", [True, False])
def test_the_known_answer_is_found_whether_or_not_the_loss_is_divided(tmp_path, divide):
    model, spread = Mean(), 2.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    generator = torch.Generator().manual_seed(0)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for _ in range(120):
            for _ in range(NUM):
                x = 1.0 + spread * torch.randn(MICRO, WIDTH, generator=generator)
                (model(x) / (NUM if divide else 1)).backward()
            optimizer.step()
            optimizer.zero_grad()
        history = monitor.history
        scale = history.series("noise/run/noise_scale").values
        trace = history.series("noise/run/noise_trace").values
        signal = history.series("noise/run/signal_sq").values
        assert set(history.series("noise/run/batch_size").values) == {MICRO * NUM}
    # w stays at 0: |G|² = WIDTH, tr Σ = spread² · WIDTH, times n² where the loss is not divided.
    size = 1 if divide else NUM**2
    assert np.mean(signal) == pytest.approx(WIDTH * size, rel=0.05)
    assert np.mean(trace) == pytest.approx(spread**2 * WIDTH * size, rel=0.1)
    assert np.median(scale[40:]) == pytest.approx(spread**2, rel=0.15)


def test_a_step_of_one_backward_has_none(tmp_path):
    model = Mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for _ in range(4):
            model(torch.randn(4, WIDTH)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert not monitor.history.keys("noise")


def test_scaled_gradients_that_are_unscaled_in_between_give_nothing_rather_than_nonsense(tmp_path):
    model = Mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for _ in range(4):
            for _ in range(3):
                scaler.scale(model(torch.randn(4, WIDTH))).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        history = monitor.history
        assert not len(history.series("noise/run/noise_scale").values)
