"""Exact steps, and those between, in which only a part of large outputs is read."""

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.monitor.steps import Steps
from torchvitals.record import ConfigError

from .training import batches

UNTOLD = {"min", "max", "num_nan", "num_posinf", "num_neginf"}


def make_wide():
    """An output of 64 × 1,280 elements, and one of 64 × 8."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 1280), nn.ReLU(), nn.Linear(1280, 8))


def train_wide(tmp_path, steps=12, model=None, spoil=None, **options):
    model = model or make_wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = {"every": 1, "run": tmp_path / "run", "diagnose": False, **options}
    seen = []
    with torchvitals.watch(model, optimizer, **options) as monitor:
        for step, x in enumerate(batches(steps, size=64), start=1):
            y = x
            if spoil is not None:
                spoil(step, model)
            for layer in model:
                y = layer(y)
                if layer is model[0]:
                    seen.append(y.detach().clone())
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.flush()
    return torchvitals.open_run(tmp_path / "run"), seen


def measured(history, site, step):
    return {k.stat for k in history.row(step) if k.kind == "activation" and k.site == site}


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_between_exact_steps_a_part_is_read(tmp_path, backend):
    history, seen = train_wide(tmp_path, backend=backend)
    with history:
        exact = [step for step in range(1, 13) if "max" in measured(history, "0", step)]
        assert exact == [1, 10]
        for step, whole in enumerate(seen, start=1):
            row = {k.stat: v for k, v in history.row(step).items() if k[:2] == ("activation", "0")}
            x = whole.double().numpy().ravel()
            if step not in exact:
                assert not UNTOLD & row.keys()
                x = x[np.arange(x.size) // 32 % 17 == step % 17]
            assert row["rms"] == pytest.approx(np.sqrt(np.mean(x**2)), rel=1e-5)
            assert row["mean"] == pytest.approx(x.mean(), rel=1e-4, abs=1e-6)
            assert row["std"] == pytest.approx(x.std(), rel=1e-5)
            # A part follows the whole closely.
            assert row["rms"] == pytest.approx(
                float(whole.double().square().mean().sqrt()), rel=0.2
            )


def test_small_outputs_are_always_read_whole(tmp_path):
    history, _ = train_wide(tmp_path)
    with history:
        assert all(measured(history, "2", step) >= UNTOLD for step in range(1, 13))


@pytest.mark.parametrize(
    "options", [{"exact_every": 1}, {"histograms": "full"}, {"every": 4, "exact_every": 3}]
)
def test_every_monitored_step_may_be_exact(tmp_path, options):
    history, _ = train_wide(tmp_path, **options)
    with history:
        for step in history.steps("activation"):
            assert measured(history, "0", int(step)) >= UNTOLD


def test_with_the_default_of_every_all_steps_are_exact():
    steps = Steps(10, 1)
    assert all(steps.exact(step) for step in range(1, 500) if steps.monitored(step))


@pytest.mark.parametrize("every", [1, 2, 3, 4, 7, 9])
def test_one_monitored_step_of_ten_is_exact(every):
    steps = Steps(every, 1)
    exact = [step for step in range(2, 500) if steps.monitored(step) and steps.exact(step)]
    assert [step // 10 for step in exact] == list(range(exact[0] // 10, exact[-1] // 10 + 1))


def test_the_first_step_is_exact_of_a_resumed_run_too():
    assert Steps(1, 1, last=123).exact(124)


@pytest.mark.parametrize("wrong", [0, -1, True, 2.5])
def test_a_wrong_exact_every_speaks_up(tmp_path, wrong):
    with pytest.raises(ConfigError, match="exact_every must be"):
        torchvitals.watch(make_wide(), run=tmp_path / "run", exact_every=wrong)
    assert not (tmp_path / "run").exists()


def test_what_is_not_finite_is_counted_in_the_whole_output(tmp_path):
    def spoil(step, model):
        with torch.no_grad():
            if step == 5:
                model[0].bias[100] = float("nan")

    history, seen = train_wide(tmp_path, steps=5, spoil=spoil)
    with history:
        row = {k.stat: v for k, v in history.row(5).items() if k[:2] == ("activation", "0")}
    assert row["num_nan"] == 2 * 64  # the layer was called twice
    finite = seen[4][~seen[4].isnan()]
    assert (row["min"], row["max"]) == pytest.approx((float(finite.min()), float(finite.max())))


def test_units_are_counted_in_every_step(tmp_path):
    model = make_wide()
    with torch.no_grad():
        model[0].bias[:320] = -1e3
    history, _ = train_wide(tmp_path, steps=24, model=model)
    with history:
        dead = history.series("activation/1/dead_frac").values
    assert len(dead)
    assert dead[-1] == pytest.approx(0.25)


def test_losses_are_the_same_to_the_last_bit(tmp_path):
    def losses(options):
        model = make_wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        monitor = None
        if options is not None:
            monitor = torchvitals.watch(model, optimizer, every=1, run=tmp_path / "run", **options)
        out = []
        for x in batches(12, size=64):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            out.append(loss.item())
        if monitor is not None:
            monitor.close()
        return out

    assert losses(None) == losses({})


def test_histograms_of_large_outputs_come_from_exact_steps(tmp_path):
    history, _ = train_wide(tmp_path)
    with history:
        large = history.histograms("0", "activation").counts.sum()
        weights = history.histograms("0.weight", "parameter").counts.sum()
    groups = -(-64 * 1280 // 32 // 7)
    assert large == 2 * 2 * 32 * groups  # two calls in each of the steps 1 and 10
    assert weights == 12 * 32 * -(-1280 * 8 // 32 // 7)
