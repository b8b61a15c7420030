"""Metrics of gradients under a GradScaler: its factor is taken out where it is on them, only there.

The same seeds give the same gradients without a scaler: what is logged is compared with those.
"""

import gc

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import torchvitals
from torchvitals import ModuleMonitor, stats

from .training import batches, loss_of, make_net

X = torch.tensor([[1.0, -2.0, 3.0, 0.5], [2.0, 1.0, -1.0, 4.0]])


def monitor_of(model):
    monitor = ModuleMonitor(run=False)
    monitor.set_module(model)
    monitor.add_gradient_metric("norm", stats.norm)
    monitor.add_gradient_metric("l1", lambda g: g.abs().sum())
    return monitor


def pair_of(width=4):
    """Two layers, one after the other, and an optimizer for each that changes nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, width))
    return model, [torch.optim.SGD(layer.parameters(), lr=0.0) for layer in model]


def true_metrics(kind="gradient"):
    """What the gradients of that model are without a scaler."""
    model, _ = pair_of()
    model(X).square().sum().backward()
    return {
        f"{kind}/{name}/{metric}": float(function(p.grad))
        for name, p in model.named_parameters()
        for metric, function in (
            ("norm", torch.linalg.vector_norm),
            ("l1", lambda g: g.abs().sum()),
        )
    }


def wanted(kind="gradient"):
    return pytest.approx(true_metrics(kind), rel=1e-5)


def of_kind(found, kind):
    return {key: value for key, value in found.items() if key.startswith(f"{kind}/")}


def use(scaler):
    """Another training with it."""
    model, (optimizer, other) = pair_of()
    scaler.scale(model(X).sum()).backward()
    scaler.step(optimizer)
    scaler.step(other)
    scaler.update()


def test_a_scaler_of_another_training_is_not_ours():
    scaler = GradScaler("cpu", init_scale=1024.0)
    use(scaler)
    model, _ = pair_of()
    monitor = monitor_of(model)
    monitor.begin_step(0)
    model(X).square().sum().backward()
    use(scaler)  # also while ours is under way
    monitor.monitor_gradients()
    monitor.end_step()
    assert monitor.get_step_metrics() == wanted()
    monitor.close()


@pytest.mark.parametrize("growth_interval", [2000, 1])
def test_the_order_of_the_readme_and_after_the_update(growth_interval):
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=growth_interval)
    model, optimizers = pair_of()
    monitor = monitor_of(model)
    for step in range(3):
        monitor.begin_step(step)
        scaler.scale(model(X).square().sum()).backward()
        monitor.monitor_gradients(before_clip=True)
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        monitor.monitor_gradients()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        monitor.end_step()
        found = monitor.get_step_metrics()
        assert of_kind(found, "gradient_before_clip") == wanted("gradient_before_clip")
        assert of_kind(found, "gradient") == wanted()
        monitor.begin_step(step)  # the same gradients, looked at again
        monitor.monitor_gradients()
        monitor.end_step()
        assert monitor.get_step_metrics() == wanted()
        model.zero_grad(set_to_none=step % 2 == 0)
    monitor.close()


def test_gradients_without_unscaling_in_between_and_micro_batches():
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    model, optimizers = pair_of()
    monitor = monitor_of(model)
    for step in range(2):
        monitor.begin_step(step)
        for x in X:
            scaler.scale(model(x).square().sum()).backward()
        monitor.monitor_gradients(before_clip=True)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()  # the scale is another one now
        monitor.monitor_gradients()
        monitor.end_step()
        found = monitor.get_step_metrics()
        assert of_kind(found, "gradient_before_clip") == wanted("gradient_before_clip")
        assert of_kind(found, "gradient") == wanted()
        model.zero_grad()
    monitor.close()


@pytest.mark.parametrize("updated", [False, True])
def test_of_two_optimizers_only_one_was_unscaled(updated):
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    model, (optimizer, _) = pair_of()
    monitor = monitor_of(model)
    monitor.begin_step(0)
    scaler.scale(model(X).square().sum()).backward()
    scaler.unscale_(optimizer)
    if updated:
        scaler.step(optimizer)
        scaler.update()
    monitor.monitor_gradients()
    monitor.end_step()
    assert monitor.get_step_metrics() == wanted()
    monitor.close()


def test_a_scaler_for_each_of_two_optimizers():
    """As adversaries are trained: what the one unscaled stays so while the other one scales."""
    scalers = [GradScaler("cpu", init_scale=scale) for scale in (1024.0, 64.0)]
    model, optimizers = pair_of()
    monitor = monitor_of(model)
    for step in range(2):
        monitor.begin_step(step)
        for scaler, optimizer, layer in zip(scalers, optimizers, model, strict=True):
            loss = model(X).square().sum()
            scaled, grads = scaler.scale(loss), list(layer.parameters())
            for p, g in zip(grads, torch.autograd.grad(scaled, grads), strict=True):
                p.grad = g
            monitor.monitor_gradients(before_clip=True)
            scaler.step(optimizer)
            scaler.update()
        monitor.monitor_gradients()
        monitor.end_step()
        found = monitor.get_step_metrics()
        assert of_kind(found, "gradient") == wanted()
        assert of_kind(found, "gradient_before_clip") == wanted("gradient_before_clip")
        model.zero_grad()
    monitor.close()


def test_a_scaler_that_is_switched_off():
    scaler = GradScaler("cpu", enabled=False)
    model, optimizers = pair_of()
    monitor = monitor_of(model)
    monitor.begin_step(0)
    scaler.scale(model(X).square().sum()).backward()
    scaler.unscale_(optimizers[0])
    monitor.monitor_gradients()
    monitor.end_step()
    assert monitor.get_step_metrics() == wanted()
    monitor.close()


class OwnScale(GradScaler):
    """As FSDP's: it scales without its parent's method."""

    def scale(self, outputs):
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(outputs.device)
        return outputs * self._scale


def test_a_scaler_with_a_method_of_its_own():
    scaler = OwnScale("cpu", init_scale=1024.0)
    model, _ = pair_of()
    monitor = monitor_of(model)
    monitor.begin_step(0)
    scaler.scale(model(X).square().sum()).backward()
    monitor.monitor_gradients()
    monitor.end_step()
    assert monitor.get_step_metrics() == wanted()
    monitor.close()


@pytest.mark.parametrize("how", ["closed", "dropped"])
def test_nothing_is_left_in_the_scaler(how):
    names = ("scale", "unscale_", "step", "update")
    before = [vars(GradScaler)[name] for name in names]
    model, _ = pair_of()
    monitor = monitor_of(model)
    monitor.begin_step(0)
    assert vars(GradScaler)["scale"] is not before[0]
    if how == "closed":
        monitor.close()
    else:
        del monitor
        gc.collect()
    assert [vars(GradScaler)[name] for name in names] == before


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("ours", [False, True], ids=["another's", "ours"])
def test_under_watch(tmp_path, ours, fused):
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    use(scaler)
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=2) as monitor:
        monitor.add_gradient_metric("l1", lambda g: g.abs().sum(), "head")
        for x in batches(5):
            alone = make_net()
            alone.load_state_dict(model.state_dict())
            loss_of(alone, x).backward()
            loss = loss_of(model, x)
            if ours:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
            else:
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()
            last = float(alone.head.weight.grad.abs().sum())
            found = monitor.get_step_metrics()
            if monitor.step_number in (1, 2, 4):
                assert found["gradient/head.weight/l1"] == pytest.approx(last, rel=1e-4)
        values = monitor.history.series("gradient/head.weight/l1").values
        assert len(values) == 3
