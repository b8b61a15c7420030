"""Training with a GradScaler: the scale, and the steps it skips."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import torchvitals
from torchvitals.record import Key

from .training import batches, loss_of, make_net, train

BAD = {2, 5}


def scaled_training(model, optimizer, scaler, num=6, unscale=False):
    losses = []
    for number, x in enumerate(batches(num), start=1):
        loss = loss_of(model, x)
        scaler.scale(loss * (float("inf") if number in BAD else 1.0)).backward()
        if unscale:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale", [False, True])
def test_scale_and_skips(tmp_path, fused, unscale):
    def make():
        model = make_net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        return model, optimizer, GradScaler("cpu", init_scale=1024.0)

    plain = scaled_training(*make(), unscale=unscale)
    step = GradScaler.step
    model, optimizer, scaler = make()
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        assert scaled_training(model, optimizer, scaler, unscale=unscale) == plain
        assert monitor.step_number == 6  # a skipped step is a step
        history = monitor.history
        assert history.series("amp/scaler/scale").values.tolist() == [
            1024, 1024, 512, 512, 512, 256,
        ]  # fmt: skip
        assert history.series("amp/scaler/skipped").values.tolist() == [0, 1, 0, 0, 1, 0]
        bad = history.row(2)
        counts = (bad[Key("gradient", "scale", f"num_{k}")] for k in ("nan", "posinf", "neginf"))
        assert sum(counts) == 8
        assert bad[Key("gradient", "[root module]", "num_backward")] == 1
        assert bad[Key("input", "0", "num_nan")] == 0
        assert pickle.loads(pickle.dumps(scaler)).get_scale() == scaler.get_scale()
        copy.deepcopy(scaler)
    assert GradScaler.step is step


def test_skips_between_monitored_steps_count_as_steps(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=5) as monitor:
        scaled_training(model, optimizer, GradScaler("cpu", init_scale=1024.0))
        assert monitor.step_number == 6
        got = monitor.history.series("amp/scaler/skipped")
        assert (got.steps.tolist(), got.values.tolist()) == ([1, 5], [0, 1])


def test_without_a_scaler_or_with_one_that_is_off(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        train(model, optimizer, batches(1))
        scaler = GradScaler("cpu", enabled=False)
        scaler.scale(loss_of(model, batches(1)[0])).backward()
        scaler.step(optimizer)
        assert monitor.step_number == 2
        assert not monitor.history.keys("amp")


def test_several_optimizers_and_monitors(tmp_path):
    models = {"g": nn.Linear(8, 8), "c": nn.Linear(8, 8)}
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in models.values()]
    other = make_net()
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.01)
    step = GradScaler.step
    first = torchvitals.watch(models, optimizers, run=tmp_path / "a", every=1)
    second = torchvitals.watch(other, other_optimizer, run=tmp_path / "b", every=1)
    scaler = GradScaler("cpu", init_scale=8.0)
    for number, x in enumerate(batches(3)):
        scaler.scale(loss_of(models["g"], x) * (float("nan") if number == 1 else 1.0)).backward()
        scaler.scale(loss_of(models["c"], x)).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    assert first.history.series("amp/scaler/skipped").values.tolist() == [0, 1, 0]
    assert (first.step_number, second.step_number) == (3, 0)
    first.close()
    scaled_training(other, other_optimizer, scaler, num=2)
    assert second.history.series("amp/scaler/skipped").values.tolist() == [0, 1]
    second.close()
    assert GradScaler.step is step
