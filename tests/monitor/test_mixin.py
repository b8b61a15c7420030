"""MonitorMixin: which monitor a module logs to, and what modules of a reference log."""

import copy
import gc

import pytest
import torch
from torch import nn

from torchvitals import ModuleMonitor, MonitorMixin


class Sized(nn.Module, MonitorMixin):
    """As in torch-module-monitor's README: the same name in every model."""

    def __init__(self):
        super().__init__()
        self.transform = nn.Linear(4, 4)

    def forward(self, x):
        y = self.transform(x)
        if self.is_monitoring:
            monitor = self.get_module_monitor()
            monitor.log_tensor("size", y.norm(dim=-1))
            monitor.log_scalar("num", len(y))
            monitor.log_scalars({"largest": y.max()})
            name = "of_reference" if self.is_reference_module else "of_model"
            monitor.log_scalar(name, 1.0, sum)
            monitor.monitor_activations("by_hand", y)
            monitor.monitor_activations(self.transform, 2 * y)
        return y


def watched(model, **kwargs):
    monitor = ModuleMonitor(run=False, **kwargs)
    monitor.set_module(model)
    return monitor


def larger(model):
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(100.0)
    return twin


@pytest.mark.parametrize("reference_first", [True, False])
@pytest.mark.parametrize("by_monitor", [True, False])
def test_what_the_reference_logs_is_not_mixed_with_the_models(reference_first, by_monitor):
    model = nn.Sequential(Sized())
    monitor, reference = watched(model), larger(model)
    monitor.add_activation_metric("l2", lambda x: x.norm(dim=-1), "by_hand")
    monitor.set_reference_module(reference)
    run_reference = monitor.run_reference if by_monitor else reference
    x = torch.randn(3, 4)
    monitor.begin_step(0)
    if reference_first:
        run_reference(torch.cat([x, x]))
    y = model(x).detach()
    if not reference_first:
        run_reference(torch.cat([x, x]))
    monitor.end_step()
    found = monitor.get_step_metrics()
    size = float(y.norm(dim=-1).mean())
    assert found == {
        "size": pytest.approx(size),
        "num": 3.0,
        "largest": pytest.approx(float(y.max())),
        "of_model": 1.0,
        # A name of its own: nothing is mixed.
        "of_reference": 1.0,
        "activation/by_hand/l2": pytest.approx(size),
    }


def test_no_step_has_the_references_value_under_a_name_of_the_models():
    model = nn.Sequential(Sized())
    monitor = watched(model, reference="init")
    x = torch.randn(3, 4)
    monitor.begin_step(0)
    model(x)
    monitor.run_reference(x)
    monitor.end_step()
    monitor.begin_step(1)
    monitor.run_reference(x)
    monitor.end_step()
    assert monitor.get_step_metrics() == {"of_reference": 1.0}


def test_what_the_reference_logged_in_a_step_that_was_given_up_is_dropped():
    monitor = watched(nn.Sequential(Sized()), reference="init")
    theirs = monitor.reference_module[0].get_module_monitor()
    for step in range(2):
        monitor.begin_step(step)
        theirs.log_scalar("x", float(step))
    monitor.end_step()
    assert monitor.get_step_metrics() == {"x": 1.0}


def test_activations_by_hand_are_compared_with_the_references():
    model = nn.Sequential(Sized())
    monitor = watched(model)
    monitor.add_activation_difference_metric("l2", lambda a, b: (a - b).norm(dim=-1), "by_hand")
    reference = larger(model)
    monitor.set_reference_module(reference)
    x = torch.randn(3, 4)
    monitor.begin_step(0)
    y = model(x).detach()
    z = monitor.run_reference(x)
    monitor.end_step()
    found = monitor.get_step_metrics()
    difference = float((y - z).norm(dim=-1).mean())
    assert found["activation_difference/by_hand/l2"] == pytest.approx(difference)


def test_the_monitor_knows_modules_of_the_reference_without_being_told():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    monitor = watched(model, reference="init")
    monitor.add_activation_metric("mean", lambda x: x.float().mean())
    monitor.add_activation_difference_metric("moved", lambda a, b: (a - b).mean())
    theirs = monitor.reference_module[1]
    assert monitor.name_of(theirs) == monitor.name_of(model[1]) == "1"
    monitor.begin_step(0)
    monitor.monitor_activations(model[1], torch.full((2,), 3.0))
    monitor.monitor_activations(theirs, torch.full((2,), 1.0))
    monitor.end_step()
    found = monitor.get_step_metrics()
    assert found == {"activation/1/mean": 3.0, "activation_difference/1/moved": 2.0}


def test_a_module_of_neither_model_is_told():
    monitor = watched(nn.Linear(2, 2), reference="init")
    with pytest.raises(ValueError, match="Conv2d is no module of the watched model; give a name"):
        monitor.name_of(nn.Conv2d(1, 1, 1))
    with pytest.raises(ValueError, match="Linear is no module of the reference model"):
        monitor.name_of(monitor.module, is_reference=True)


def test_a_module_that_both_models_share_logs_as_the_models():
    shared = Sized()
    model, reference = nn.Sequential(shared), nn.Sequential(shared, Sized())
    monitor = watched(model)
    monitor.set_reference_module(reference)
    assert not shared.is_reference_module
    assert shared.get_module_monitor() is monitor
    assert reference[1].is_reference_module
    monitor.remove_reference_module()
    assert shared.get_module_monitor() is monitor
    assert reference[1].get_module_monitor() is None


def test_the_references_monitor_is_the_monitor():
    model = nn.Sequential(Sized())
    monitor = watched(model, reference="init")
    theirs = monitor.reference_module[0]
    monitor.begin_step(4)
    seen = theirs.get_module_monitor()
    assert isinstance(seen, ModuleMonitor)
    assert seen.current_step == 4
    assert seen.module is model
    with seen.no_monitor():
        assert not monitor.is_monitoring()
        assert not theirs.is_monitoring
    assert theirs.is_monitoring


def test_an_aggregation_that_fails_on_the_references_values_is_told(caplog):
    monitor = watched(nn.Sequential(Sized()), reference="init")
    theirs = monitor.reference_module[0]
    monitor.begin_step(7)
    theirs.get_module_monitor().log_tensor("x", torch.ones(2), lambda _x: 1 / 0)
    monitor.end_step()
    assert "the aggregation of x failed in step 7" in caplog.text


@pytest.mark.parametrize("rename", [None, lambda name: f"my.{name}"])
def test_excluded_modules_are_not_monitored(rename):
    model = nn.Sequential(Sized(), Sized())
    regex = "0" if rename is None else r"my\.0"
    monitor = watched(
        model, excluded_modules_regex=regex, format_module_name_fn=rename, reference="init"
    )
    monitor.add_activation_metric("l2", lambda x: x.norm(dim=-1))
    monitor.begin_step(0)
    assert [layer.is_monitoring for layer in model] == [False, True]
    assert [layer.is_monitoring for layer in monitor.reference_module] == [False, True]
    assert model[0].get_module_monitor() is None
    y = model(torch.randn(3, 4))
    # By hand, too.
    monitor.monitor_activations(model[0], y)
    monitor.monitor_activations(model[0].transform, y)
    monitor.monitor_activations(monitor.name_of(model[0]) + ".part", y)
    monitor.monitor_activations(monitor.reference_module[0], y)
    monitor.end_step()
    found = monitor.get_step_metrics()
    assert found["size"] == pytest.approx(float(y.detach().norm(dim=-1).mean()))
    assert found["of_model"] == 1.0
    assert not [key for key in found if "/0" in key or "my.0" in key]


def test_closing_a_monitor_leaves_the_mixins_of_another():
    model = nn.Sequential(Sized())
    first, second = watched(model), watched(model)
    assert model[0].get_module_monitor() is second
    first.close()
    assert model[0].get_module_monitor() is second
    third = watched(model)
    assert model[0].get_module_monitor() is third
    third.close()
    assert model[0].get_module_monitor() is second
    second.close()
    assert model[0].get_module_monitor() is None


def test_a_monitor_that_is_dropped_gives_the_mixins_back():
    model = nn.Sequential(Sized())
    first = watched(model)
    second = watched(model)
    assert model[0].get_module_monitor() is second
    del second
    gc.collect()
    assert model[0].get_module_monitor() is first


def test_the_reference_of_one_monitor_may_be_the_model_of_another():
    model, other = nn.Sequential(Sized()), nn.Sequential(Sized())
    first, second = watched(model), watched(other)
    second.set_reference_module(model)
    assert model[0].is_reference_module
    second.remove_reference_module()
    assert not model[0].is_reference_module
    assert model[0].get_module_monitor() is first
