"""The steps of a ModuleMonitor: what belongs to which, what happens when one is not ended."""

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

from torchvitals import ModuleMonitor, open_run
from torchvitals.record import ConfigError, RunExists


def watched(model=None, due=None, **options):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    monitor = ModuleMonitor(due, **{"run": False, **options})
    monitor.set_module(model)
    monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1))
    monitor.add_activation_metric("spread", lambda x: x.max() - x.min())
    return model, monitor


def step(model, monitor, number, x):
    monitor.begin_step(number)
    model(x)
    monitor.end_step()
    return monitor.get_step_metrics()


def test_begin_step_says_whether_the_step_is_monitored():
    _, monitor = watched(due=lambda step: step % 2 == 0)
    assert [monitor.begin_step(k) for k in range(4)] == [True, False, True, False]


def test_without_a_model_only_a_monitored_step_is_an_error():
    monitor = ModuleMonitor(lambda step: step == 1, run=False)
    assert monitor.begin_step(0) is False
    with pytest.raises(ValueError, match="Set the module to monitor"):
        monitor.begin_step(1)


@pytest.mark.parametrize("step", ["a", 1.5, None])
def test_a_step_is_a_whole_number(step):
    _, monitor = watched()
    with pytest.raises(ConfigError, match=f"whole number, got {step!r}"):
        monitor.begin_step(step)


def test_a_step_that_was_not_ended_leaves_nothing_to_the_next():
    model, monitor = watched(due=lambda step: step % 2 == 0)
    x = torch.ones(1, 2)
    want = step(model, monitor, 0, x)
    monitor.begin_step(2)
    model(1000 * x)
    monitor.log_scalar("loss", 5.0)  # and then `continue`
    monitor.begin_step(3)
    assert not torch_module._has_any_global_hook()
    model(1000 * x)
    monitor.end_step()
    monitor.begin_step(4)
    model(x)
    monitor.log_scalar("loss", 7.0)
    monitor.end_step()
    assert monitor.get_step_metrics() == {**want, "loss": 7.0}


def test_a_step_may_begin_again():
    model, monitor = watched()
    x = torch.ones(1, 2)
    monitor.begin_step(0)
    model(1000 * x)
    again = step(model, monitor, 0, x)
    assert again == step(model, monitor, 1, x)


def test_what_is_logged_after_the_end_counts_for_the_next_step():
    _, monitor = watched()
    monitor.begin_step(0)
    monitor.end_step()
    monitor.log_scalar("accuracy", 0.5, force=True)
    monitor.begin_step(1)
    monitor.end_step()
    assert monitor.get_step_metrics() == {"accuracy": 0.5}


def test_a_step_that_begins_while_looking_away():
    model, monitor = watched()
    x = torch.ones(1, 2)
    want = step(model, monitor, 0, x)
    with monitor.no_monitor():
        monitor.begin_step(1)
        model(1000 * x)
    model(x)
    monitor.end_step()
    assert monitor.get_step_metrics() == want


def test_a_model_without_parameters(tmp_path):
    model, monitor = watched(nn.Sequential(nn.ReLU(), nn.Tanh()), run=tmp_path / "run")
    found = step(model, monitor, 0, torch.tensor([-1.0, 2.0]))
    assert found["activation/0/mean"] == 1.0
    monitor.close()
    with open_run(tmp_path / "run") as history:
        assert history.series("activation/0/mean").values.tolist() == [1.0]


def test_a_run_that_exists_is_an_error_before_the_first_step(tmp_path):
    model, monitor = watched(run=tmp_path / "run")
    step(model, monitor, 0, torch.ones(1, 2))
    monitor.close()
    with pytest.raises(RunExists, match="give another folder"):
        watched(run=tmp_path / "run")


def test_a_folder_that_cannot_be_written_is_told_once(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    model, monitor = watched(run=tmp_path / "file" / "run")
    for k in range(3):
        assert step(model, monitor, k, torch.ones(1, 2))
    assert caplog.text.count("metrics are not stored") == 1
    assert list(monitor.get_all_metrics()) == [2]


@pytest.mark.filterwarnings("ignore:Using `torch.compile.module.` when there are global hooks")
@pytest.mark.parametrize("inside", [False, True])
def test_compiled_code_has_no_outputs_and_that_is_told_once(caplog, inside):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    called = model
    if inside:
        model.compile(backend="eager")
    else:
        called = torch.compile(model, backend="eager")
    monitor = ModuleMonitor(run=False)
    monitor.set_module(called)
    monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1))
    monitor.add_activation_metric("spread", lambda x: x.max() - x.min())
    for k in range(3):
        assert not step(called, monitor, k, torch.ones(1, 2))
    assert caplog.text.count("compiled code calls no hooks") == 1
    with torch.compiler.set_stance("force_eager"):
        assert "activation/0/spread" in step(called, monitor, 3, torch.ones(1, 2))
    torch._dynamo.reset()


def test_differences_without_a_reference_are_told_once(caplog):
    model, monitor = watched()
    monitor.add_activation_difference_metric("rms", lambda x, y: (x - y).square().mean().sqrt())
    monitor.add_parameter_difference_metric("norm", lambda p, q: (p - q).norm())
    x = torch.ones(1, 2)
    for k in range(3):
        monitor.begin_step(k)
        model(x)
        monitor.monitor_parameters()
        monitor.end_step()
    assert caplog.text.count("activation_difference metrics have no values: the reference") == 1
    assert caplog.text.count("parameter_difference metrics have no values: the reference") == 1
    monitor.set_reference_module("init")
    monitor.begin_step(3)
    model(x)
    monitor.run_reference(x)
    monitor.monitor_parameters()
    monitor.end_step()
    assert monitor.get_step_metrics()["activation_difference/0/rms"] == 0.0
