"""Under AMP: gradients as they are, whoever unscales them, and whenever."""

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals

SCALE = 2.0**12


def train(path, *, fused, unscale, scaler=True, steps=4, bad_step=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    amp = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaler, growth_interval=1000)
    monitor = None
    if path is not None:
        monitor = torchvitals.watch(
            model, optimizer, run=path, every=1, updates="exact", histograms="full", machine=False
        )
    losses = []
    for step in range(1, steps + 1):
        torch.manual_seed(step)
        x = torch.randn(32, 8)
        if step == bad_step:
            x[0, 0] = float("inf")
        loss = (model(x) - x[:, :4]).square().mean()
        amp.scale(loss).backward()
        if unscale:
            amp.unscale_(optimizer)
        amp.step(optimizer)
        amp.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    if monitor is not None:
        monitor.close()
    return losses, amp.get_scale()


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_measured_unscaled(tmp_path, fused, unscale):
    watched, _ = train(tmp_path / "amp", fused=fused, unscale=unscale)
    bare, _ = train(None, fused=fused, unscale=unscale)
    assert watched == bare
    train(tmp_path / "plain", fused=fused, unscale=False, scaler=False)
    with (
        torchvitals.open_run(tmp_path / "amp") as amp,
        torchvitals.open_run(tmp_path / "plain") as plain,
    ):
        for stat in ("norm", "rms", "mean", "std", "min", "max", "zero_frac"):
            for key in plain.keys("gradient", stat=stat):
                found, wanted = amp.series(key), plain.series(key)
                assert found.steps.tolist() == [1, 2, 3, 4]
                np.testing.assert_allclose(
                    found.values, wanted.values, rtol=1e-4, atol=1e-9, err_msg=str(key)
                )
        for stat in ("ratio", "cosine", "lr_ratio"):
            for key in plain.keys("update", stat=stat):
                np.testing.assert_allclose(
                    amp.series(key).values, plain.series(key).values, rtol=1e-3, err_msg=str(key)
                )
        # A scale that is a power of two changes no mantissa: the same bins exactly.
        for kind, site in plain.histogram_sites("gradient"):
            found, wanted = (h.histograms(site, kind).counts.sum(axis=0) for h in (amp, plain))
            assert np.abs(found.astype(int) - wanted.astype(int)).sum() <= 4


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_is_no_step_of_the_weights(tmp_path, fused):
    watched, scale = train(tmp_path / "amp", fused=fused, unscale=False, bad_step=2)
    bare, bare_scale = train(None, fused=fused, unscale=False, bad_step=2)
    np.testing.assert_array_equal(watched, bare)
    assert scale == bare_scale == SCALE / 2
    with torchvitals.open_run(tmp_path / "amp") as history:
        ratio = history.series("update/0.weight/ratio")
        if fused:  # step() is called and does nothing
            assert ratio.steps.tolist() == [1, 2, 3, 4]
            assert ratio.values[1] == 0
        else:  # step() is not called: the step has no update to measure
            assert ratio.steps.tolist() == [1, 3, 4]
            assert (ratio.values > 0).all()
        assert history.series("amp/scaler/skipped").values.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_parameters_are_summed_in_float32_at_least(tmp_path, dtype):
    torch.manual_seed(0)
    model = nn.Linear(512, 512, bias=False).to(dtype)
    model.weight.data.fill_(0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, machine=False):
        (model(torch.full((2, 512), 100.0, dtype=dtype)).float().sum() * 1e-3).backward()
        gradient = model.weight.grad.double()
        optimizer.step()
    weight = model.weight.detach().double()
    with torchvitals.open_run(tmp_path / "run") as history:
        row = {str(key): value for key, value in history.row(1).items()}
    # Σ w² = 26 in 262,144 addends: in the tensor's own precision it would stop growing.
    assert row["parameter/weight/norm"] == pytest.approx(float(weight.norm()), rel=1e-5)
    assert row["gradient/weight/norm"] == pytest.approx(float(gradient.norm()), rel=1e-5)


@pytest.mark.parametrize("updates", ["exact", "sampled"])
@pytest.mark.parametrize(("dtype", "bits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_updates_lost_to_rounding_are_counted(tmp_path, dtype, bits, updates):
    torch.manual_seed(0)
    model = nn.Linear(64, 64, bias=False)
    model.weight.data.uniform_(0.26, 0.49)  # between two powers of two: one ulp for all
    model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    half = 0.25 * 2.0 ** (1 - bits) / 2
    gradient = half * torch.rand(64, 64, generator=torch.Generator().manual_seed(1)).mul(4.0)
    before = model.weight.detach().clone()
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, machine=False, updates=updates,
        sample_size=4096,
    ):  # fmt: skip
        model.weight.grad = gradient.to(dtype)
        wanted = model.weight.grad.double()
        optimizer.step()
    assert 0.2 < float((before == model.weight).double().mean()) < 0.3
    with torchvitals.open_run(tmp_path / "run") as history:
        lost = history.series("update/weight/zero_frac").values[0]
    # What is smaller than half a last bit is gone; of exactly half a bit, what rounds to even.
    surely, at_most = (wanted < half).double().mean(), (wanted <= half).double().mean()
    assert surely <= lost <= at_most
    assert at_most - surely < 0.01


def test_autocast_leaves_float32_gradients_and_bfloat16_outputs(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = torch.randn(32, 8)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1, machine=False):
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
            loss = out.float().square().mean()
        loss.backward()
        gradient = model[0].weight.grad.double()
        optimizer.step()
    with torchvitals.open_run(tmp_path / "run") as history:
        row = {str(key): value for key, value in history.row(1).items()}
    assert out.dtype is torch.bfloat16
    assert row["gradient/0.weight/norm"] == pytest.approx(float(gradient.norm()), rel=1e-5)
    rms = float(out.detach().double().square().mean().sqrt())
    assert row["activation/2/rms"] == pytest.approx(rms, rel=1e-5)
