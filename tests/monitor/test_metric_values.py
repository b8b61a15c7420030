"""Values of metrics at the edges: NaN and Inf, several shapes, nothing at all, what is logged."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals import ModuleMonitor, stats
from torchvitals.monitor import metrics
from torchvitals.record import ConfigError

from .training import batches, loss_of, make_net

NAN, INF = math.nan, math.inf


class Same(nn.Module):
    """Puts out what it is given."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x


def monitor_of(model, **kwargs):
    monitor = ModuleMonitor(run=False, **kwargs)
    monitor.set_module(model)
    return monitor


def step_of(monitor, *calls, step=0):
    """The step's metrics, with these calls in it."""
    monitor.begin_step(step)
    for call in calls:
        call()
    monitor.end_step()
    return monitor.get_step_metrics()


RECOGNISED = {
    "norm": lambda x: x.norm(),
    "mean": lambda x: x.mean(),
    "rows": lambda x: x.mean(dim=-1),
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "absmax": lambda x: x.abs().max(),
}
CALLED = {
    "norm": torch.linalg.vector_norm,
    "mean": torch.mean,
    "rows": lambda x: torch.mean(x, dim=-1),
    "max": torch.max,
    "min": torch.min,
    "absmax": lambda x: torch.abs(x).max(),
}


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("only_means", [False, True])
@pytest.mark.parametrize(
    "values",
    [[NAN, 1.0, 2.0], [NAN] * 3, [INF] * 3, [1.0, INF], [1.0, -INF], [INF, -INF], [1.0, 2.0]],
    ids=str,
)
def test_nan_and_inf_of_activations_are_not_left_out(values, only_means, backend):
    model = Same()
    monitor = monitor_of(model, backend=backend)
    names = ("mean", "rows") if only_means else tuple(RECOGNISED)
    for name in names:
        monitor.add_activation_metric(name, RECOGNISED[name])
        monitor.add_activation_metric(f"called_{name}", CALLED[name])
    if only_means:
        monitor.add_activation_metric("again", stats.mean)
    x = torch.tensor(values)
    for step in range(3):  # outputs wait for each other from the second step on
        found = step_of(monitor, lambda: model(x), step=step)
        for name in names:
            one, other = (found[f"activation/[root module]/{k}"] for k in (name, f"called_{name}"))
            assert one == pytest.approx(other, nan_ok=True), name


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_nan_and_inf_of_parameters_and_gradients_are_not_left_out(bad):
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight[0, 0] = bad
    model.weight.grad, model.bias.grad = model.weight.detach().clone(), torch.ones(2)
    monitor = monitor_of(model)
    for name, recognised in RECOGNISED.items():
        monitor.add_parameter_metric(name, recognised)
        monitor.add_parameter_metric(f"called_{name}", CALLED[name])
    monitor.add_gradient_metric("norm", RECOGNISED["norm"])
    found = step_of(monitor, monitor.monitor_parameters, monitor.monitor_gradients)
    for name in RECOGNISED:
        one, other = (found[f"parameter/weight/{k}"] for k in (name, f"called_{name}"))
        assert one == pytest.approx(other, nan_ok=True), name
    assert not math.isfinite(found["gradient/weight/norm"])
    assert found["gradient/bias/norm"] == pytest.approx(math.sqrt(2))


class Shared(nn.Module):
    """One activation behind layers of different widths."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.act = nn.Linear(2, 100), nn.Linear(100, 3), nn.ReLU()

    def forward(self, x):
        return self.act(self.narrow(self.act(self.wide(x))))


@pytest.mark.parametrize("regex", [".*", "act"], ids=["all alike", "not all"])
@pytest.mark.parametrize("rows", [(7,), (1, 9, 9)], ids=["one batch", "micro-batches"])
def test_means_over_calls_of_several_shapes(rows, regex):
    torch.manual_seed(0)
    model = Shared()
    monitor = monitor_of(model)
    for name in ("mean", "rows"):
        monitor.add_activation_metric(name, RECOGNISED[name], regex)
        monitor.add_activation_metric(f"called_{name}", CALLED[name], regex)
    for step in range(4):
        inputs = [torch.randn(num, 2) for num in rows]
        found = step_of(monitor, *(lambda x=x: model(x) for x in inputs), step=step)
        for name in ("mean", "rows"):
            for site in ("act", "wide") if regex == ".*" else ("act",):
                one, other = (found[f"activation/{site}/{k}"] for k in (name, f"called_{name}"))
                assert one == pytest.approx(other, rel=1e-5, abs=1e-7), (step, site, name)
    assert found["activation/act/mean"] != pytest.approx(found["activation/act/rows"]) or (
        len(set(rows)) == 1
    )


def test_a_single_value_of_each_call_counts_once():
    model = Same()
    monitor = monitor_of(model)
    monitor.add_activation_metric("mean", RECOGNISED["mean"])
    monitor.add_activation_metric("rows", RECOGNISED["rows"])
    found = step_of(monitor, lambda: model(torch.ones(1, 2)), lambda: model(torch.zeros(9, 2)))
    assert found == {
        "activation/[root module]/mean": pytest.approx(0.5),
        "activation/[root module]/rows": pytest.approx(0.1),
    }


def test_outputs_of_many_shapes_do_not_pile_up():
    model = Same()
    monitor = monitor_of(model)
    monitor.add_activation_metric("rows", RECOGNISED["rows"])
    for step in range(400):
        x = torch.full((1 + step, 2), float(step))
        found = step_of(monitor, lambda x=x: model(x), step=step)
        assert found["activation/[root module]/rows"] == pytest.approx(step)
    probe = monitor._looking._means.probe
    assert len(probe._shapes) < 100


@pytest.mark.parametrize(
    "metric", [RECOGNISED["rows"], CALLED["rows"], lambda x: x[x > 9]], ids=["rows", "called", "x"]
)
def test_a_metric_that_returns_nothing_is_told_once(caplog, metric):
    model = Same()
    monitor = monitor_of(model)
    monitor.add_activation_metric("none", metric)
    for step in range(3):
        assert step_of(monitor, lambda: model(torch.ones(0, 2)), step=step) == {}
    told = [record.message for record in caplog.records if "'none'" in record.message]
    assert len(told) == 1
    assert "empty" in told[0]
    assert "step 0" in told[0]


def test_an_empty_output_beside_others_leaves_their_mean_alone():
    model = Same()
    monitor = monitor_of(model)
    monitor.add_activation_metric("rows", RECOGNISED["rows"])
    found = step_of(monitor, lambda: model(torch.ones(0, 2)), lambda: model(torch.ones(3, 2)))
    assert found == {"activation/[root module]/rows": 1.0}


BAD = [None, "x", [1.0], (1.0,), {"a": 1.0}, 1j, np.ones(2), np.array("x"), np.str_("x"), object()]


@pytest.mark.parametrize("value", BAD, ids=lambda value: type(value).__name__)
def test_what_is_logged_by_hand_must_be_a_number(value):
    monitor = monitor_of(make_net())
    monitor.begin_step(0)
    for log in (monitor.log_scalar, monitor.log_tensor):
        with pytest.raises(ConfigError, match="'mine' must be a number or a tensor, got") as caught:
            log("mine", value)
        assert type(value).__name__ in str(caught.value)
        assert "metric" not in str(caught.value)
    monitor.end_step()
    assert monitor.get_step_metrics() == {}


def test_numbers_of_numpy_may_be_logged():
    monitor = monitor_of(make_net())
    monitor.begin_step(0)
    for number, value in enumerate((np.float32(2), np.int8(2), np.array(2.0), np.array([2]))):
        monitor.log_scalar(f"a{number}", value)
        monitor.log_scalar(f"b{number}", value, aggregation_fn=torch.max)
    monitor.end_step()
    assert set(monitor.get_step_metrics().values()) == {2.0}


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2)], ids=["first", "second"])
def test_values_under_one_key_join_its_aggregation(order):
    monitor = monitor_of(make_net())
    logs = [
        lambda: monitor.log_scalar("a", 1.0, aggregation_fn=torch.max),
        lambda: monitor.log_scalar("a", 5.0),
        lambda: monitor.log_tensor("a", torch.tensor([2.0, 3.0])),
    ]
    assert step_of(monitor, *(logs[which] for which in order)) == {"a": 5.0}


def test_an_aggregation_that_comes_too_late_is_told(caplog):
    monitor = monitor_of(make_net())
    for step in range(2):
        found = step_of(
            monitor,
            lambda: monitor.log_tensor("late", torch.tensor([7.0, 8.0])),
            lambda: monitor.log_scalar("late", 1.0, aggregation_fn=torch.max),
            step=step,
        )
        assert found == {"late": 1.0}
    assert len([r for r in caplog.records if "late" in r.message]) == 1


@pytest.mark.parametrize("inference", [False, True])
def test_a_metric_that_writes_into_its_input_is_told_once(caplog, inference):
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity())
    monitor = monitor_of(model)
    monitor.add_activation_metric("writes", lambda x: x.abs_().mul_(0).sum(), "0")
    monitor.add_activation_metric("reads", lambda x: x.abs().mul(0).sum(), "0")
    monitor.add_parameter_metric("writes", lambda p: p.mul_(1.0).sum(), "0.weight")
    for step in range(2):
        with torch.inference_mode(inference):
            found = step_of(monitor, lambda: model(torch.ones(1, 2)), step=step)
        assert found == {"activation/0/writes": 0.0, "activation/0/reads": 0.0}
    told = [record.message for record in caplog.records if "'writes'" in record.message]
    # Inference tensors do not count how often they are written into, and train nothing.
    assert len(told) == (0 if inference else 1)
    step_of(monitor, monitor.monitor_parameters, step=3)
    messages = [record.message for record in caplog.records]
    assert any("parameter metric 'writes'" in text and "step 3" in text for text in messages)
    assert not any("'reads'" in text for text in messages)


def test_outputs_handed_over_by_hand_may_be_tuples():
    model = nn.Sequential(nn.Linear(2, 2))
    monitor = monitor_of(model)
    monitor.add_activation_metric("sum", lambda x: x.sum())
    monitor.begin_step(0)
    monitor.monitor_activations("x", (torch.ones(2), {"a": torch.ones(3)}, None))
    monitor.monitor_activations("y", torch.ones(4))
    for nothing in (None, (), (None, 3), "text"):
        with pytest.raises(ConfigError, match="activations of 'x' are a tensor"):
            monitor.monitor_activations("x", nothing)
    monitor.end_step()
    assert monitor.get_step_metrics() == {
        "activation/x:out[0]/sum": 2.0, "activation/x:out[1][a]/sum": 3.0, "activation/y/sum": 4.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("gradient", "norm"), ("gradient", "num_nan"), ("gradient", "missing"),
        ("parameter", "std"), ("parameter", "stable_rank"),
        ("activation", "mean"), ("activation", "dead_frac"),
    ],
)  # fmt: skip
def test_under_watch_the_names_of_its_own_columns_are_taken(tmp_path, kind, name):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        add = getattr(monitor, f"add_{kind}_metric")
        with pytest.raises(ValueError, match=f"{kind.capitalize()} metric {name}: watch\\(\\)"):
            add(name, lambda x: x.abs().sum())
        add(f"own_{name}", lambda x: x.abs().sum())
    alone = monitor_of(model)
    getattr(alone, f"add_{kind}_metric")(name, lambda x: x.abs().sum())


def test_under_watch_the_same_statistic_may_have_the_same_name(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        monitor.add_gradient_metric("norm", stats.norm)
        monitor.add_parameter_metric("norm", lambda x: x.norm())
        monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1))
        with pytest.raises(ValueError, match="already exists"):
            monitor.add_gradient_metric("norm", stats.norm)
        with pytest.raises(ValueError, match="needs a function"):
            monitor.add_gradient_metric("std", 3)
        loss_of(model, batches(1)[0]).backward()
        expected = float(model.head.weight.grad.norm())
        optimizer.step()
        assert monitor.get_step_metrics()["gradient/head.weight/norm"] == pytest.approx(expected)
        stored = monitor.history.series("gradient/head.weight/norm").values
        assert stored[-1] == pytest.approx(expected)


def test_what_watch_does_not_measure_takes_no_name(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, activations=False
    ) as monitor:
        monitor.add_activation_metric("std", lambda x: x.abs().sum(), "head$")
        model(batches(1)[0]).sum().backward()
        optimizer.step()
        assert monitor.history.series("activation/head/std").values[0] > 0


def test_how_sites_are_served_is_found_out_once(monkeypatch):
    """Whatever tuple their names come in: each output has its own, gradients lack some."""
    made = []
    of = metrics.Statistics.of
    monkeypatch.setattr(
        metrics.Statistics, "of", lambda sites, wanted: made.append(sites) or of(sites, wanted)
    )
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(100)), nn.ReLU())
    unused = nn.Linear(4, 4)
    model[0].register_module("unused", unused)
    monitor = monitor_of(model)
    monitor.add_activation_metric("rms", stats.rms)
    monitor.add_gradient_metric("norm", stats.norm)
    monitor.add_parameter_metric("norm", stats.norm)
    for step in range(3):
        if step == 1:
            assert len(made) == 104  # outputs and the model itself, gradients, parameters
            made.clear()
        monitor.begin_step(step)
        model(torch.randn(2, 4)).sum().backward()
        monitor.monitor_gradients()
        monitor.monitor_parameters()
        monitor.end_step()
        model.zero_grad()
    assert made == []
