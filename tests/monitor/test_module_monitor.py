"""ModuleMonitor: keys and values against independent computations, and the defects of its model."""

import copy
import gc
import io
import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torchvitals
from torchvitals import ModuleMonitor, MonitorMixin, stats

from .training import batches, loss_of, make_net


def monitor_of(model, tmp_path=None, due=None, **kwargs):
    monitor = ModuleMonitor(due, run=False if tmp_path is None else tmp_path / "run", **kwargs)
    monitor.set_module(model)
    return monitor


def one_step(monitor, model, *, step=0, micro=1, between=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor.begin_step(step)
    for x in batches(micro):
        loss_of(model, x).backward()
        monitor.after_micro_batch()
    between()
    monitor.monitor_parameters()
    monitor.monitor_gradients()
    optimizer.step()
    optimizer.zero_grad()
    monitor.end_step()
    return monitor.get_step_metrics()


@pytest.mark.parametrize("metric", [stats.mean, lambda x: x.abs().max()], ids=["tap", "hook"])
def test_a_monitor_dropped_in_the_middle_of_a_step_leaves_no_trace(metric):
    from torch.nn.modules import module as internals

    def traces():
        return bool(internals._global_forward_hooks) or any(
            "_compiled_call_impl" in vars(module) for module in model.modules()
        )

    model = make_net()
    monitor = monitor_of(model)
    monitor.add_activation_metric("one", metric)
    monitor.begin_step(0)
    assert traces()
    del monitor
    gc.collect()
    assert not traces()


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("regex", [".*", r"(0|2|3)$"], ids=["all alike", "not all"])
def test_means_are_those_of_all_calls(micro, regex):
    """Every output once and alike is the fast way; several calls, or other metrics, are not."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5), nn.Tanh())
    monitor = monitor_of(model)
    monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1), metric_regex=regex)
    monitor.add_activation_metric("again", stats.mean)
    seen = {}
    for name, module in model.named_children():
        module.register_forward_hook(
            lambda _m, _i, out, name=name: seen.setdefault(name, []).append(out.detach().double())
        )
    for step in range(4):  # outputs wait for each other from the second or third on
        seen.clear()
        monitor.begin_step(step)
        for _ in range(micro):
            model(torch.randn(6, 8)).sum().backward()
        monitor.end_step()
        found = monitor.get_step_metrics()
        for name, outputs in seen.items():
            wanted = pytest.approx(float(torch.cat(outputs).mean()), rel=1e-5, abs=1e-7)
            assert found[f"activation/{name}/again"] == wanted
            has_it = regex == ".*" or name != "1"
            assert (f"activation/{name}/mean" in found) is has_it
            if has_it:
                assert found[f"activation/{name}/mean"] == wanted


def test_the_example_of_the_readme(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = ModuleMonitor(monitor_step_fn=lambda step: step % 10 == 0, run=tmp_path / "run")
    monitor.set_module(model)
    monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1))
    monitor.add_parameter_metric("norm", lambda x: x.norm())
    monitor.add_gradient_metric("norm", lambda x: x.norm())
    logged = {}
    for step, x in enumerate(batches(21)):
        monitor.begin_step(step)
        loss_of(model, x).backward()
        expected = {
            f"{kind}/{name}/norm": float(tensor.double().norm())
            for name, p in model.named_parameters()
            for kind, tensor in (("parameter", p.detach()), ("gradient", p.grad))
        }
        monitor.monitor_parameters()
        monitor.monitor_gradients()
        optimizer.step()
        optimizer.zero_grad()
        monitor.end_step()
        found = monitor.get_step_metrics()
        if not monitor.is_step_monitored(step):
            assert found == {}
            continue
        logged[step] = found
        assert {k: found[k] for k in expected} == pytest.approx(expected, rel=1e-5)
        assert "activation/[root module]/mean" in found
        assert "activation/blocks.0.1/mean" in found
    assert list(logged) == [0, 10, 20]
    everything = monitor.get_all_metrics()
    assert list(everything) == [0, 10, 20]
    for step, values in logged.items():
        assert everything[step] == pytest.approx(values, rel=1e-6)
    monitor.close()
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "finished"
        assert history.series("gradient/head.weight/norm").steps.tolist() == [0, 10, 20]


def test_named_statistics_are_served_by_the_kernel_and_equal_the_functions():
    names = ("norm", "rms", "mean", "std", "min", "max", "absmax", "zero_frac")
    model = make_net()
    monitor = monitor_of(model)
    for name in names:
        function = getattr(stats, name)
        for add in (
            monitor.add_activation_metric,
            monitor.add_parameter_metric,
            monitor.add_gradient_metric,
        ):
            add(name, function)
            add(f"plain_{name}", lambda x, f=function: f(x))
    found = one_step(monitor, model)
    assert len(found) > 300
    for key, value in found.items():
        if "/plain_" not in key:
            kind, site, name = key.split("/")
            other = found[f"{kind}/{site}/plain_{name}"]
            assert value == pytest.approx(other, rel=1e-5, abs=1e-7), key


def test_activations_of_micro_batches_are_averaged_over_elements_or_aggregated():
    model = nn.Linear(2, 3)
    monitor = monitor_of(model)
    monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1))
    monitor.add_activation_metric("least", lambda x: x, metric_aggregation_fn=torch.min)
    monitor.add_activation_metric(
        "both", lambda x: x, metric_aggregation_fn=lambda x: {"_lo": x.min(), "_hi": float(x.max())}
    )
    seen = []
    monitor.begin_step(3)
    for size in (1, 7):  # uneven: a mean of means would be wrong
        seen.append(model(torch.randn(size, 2)).detach())
    monitor.end_step()
    found = monitor.get_step_metrics()
    joined = torch.cat(seen)
    root = "activation/[root module]"
    assert found[f"{root}/mean"] == pytest.approx(float(joined.mean()), rel=1e-5)
    assert found[f"{root}/least"] == found[f"{root}/both_lo"] == pytest.approx(float(joined.min()))
    assert found[f"{root}/both_hi"] == pytest.approx(float(joined.max()))
    assert all(type(value) is float for value in found.values())


def test_numbers_of_every_kind_are_taken():
    model = make_net()
    monitor = monitor_of(model)
    returns = {
        "float": 1.5, "int": 2, "bool": True, "numpy": np.float32(0.25),
        "scalar": torch.tensor(3.0), "matrix": torch.ones(2, 3),
        "half": torch.full((999,), 0.1).bfloat16(),
    }  # fmt: skip
    for name, value in returns.items():
        monitor.add_parameter_metric(name, lambda _p, v=value: v)
    found = one_step(monitor, model)
    values = {name: found[f"parameter/head.weight/{name}"] for name in returns}
    assert values.pop("half") == pytest.approx(float(torch.tensor(0.1).bfloat16()), rel=1e-6)
    assert values == {"float": 1.5, "int": 2, "bool": 1, "numpy": 0.25, "scalar": 3, "matrix": 1}


def test_regexes_match_from_the_start_of_clean_names():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    wrapped = torch.compile(model, backend="eager")
    monitor = monitor_of(wrapped)
    for add in (monitor.add_parameter_metric, monitor.add_gradient_metric):
        add("a", stats.norm, r"1\.0")
        add("b", stats.norm, r"0\.weight$")
    model(torch.randn(2, 2)).sum().backward()
    monitor.begin_step(0)
    monitor.monitor_parameters()
    monitor.monitor_gradients()
    monitor.end_step()
    assert {key.partition("/")[2] for key in monitor.get_step_metrics()} == {
        "1.0.weight/a", "1.0.bias/a", "0.weight/b",
    }  # fmt: skip


def test_gradients_before_and_after_clipping_have_keys_of_their_own():
    model = make_net()
    monitor = monitor_of(model)
    # Nothing matches the first parameter: that alone must not matter.
    monitor.add_gradient_metric("norm", stats.norm, metric_regex="head")

    def clip():
        monitor.monitor_gradients(before_clip=True)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    found = one_step(monitor, model, between=clip)
    assert found.keys() == {
        "gradient_before_clip/head.weight/norm", "gradient/head.weight/norm",
    }  # fmt: skip
    assert found["gradient/head.weight/norm"] <= 1e-3
    assert found["gradient_before_clip/head.weight/norm"] > 1e-3


def test_scaled_gradients_are_logged_as_what_they_are():
    plain, scaled = (make_net() for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    norms = []
    for model in (plain, scaled):
        monitor = monitor_of(model)
        monitor.add_gradient_metric("norm", stats.norm)
        monitor.add_gradient_metric("mine", lambda g: g.norm())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor.begin_step(0)
        loss = loss_of(model, batches(1)[0])
        (scaler.scale(loss) if model is scaled else loss).backward()
        monitor.monitor_gradients(before_clip=True)
        if model is scaled:
            scaler.unscale_(optimizer)
        monitor.monitor_gradients()
        monitor.end_step()
        norms.append(monitor.get_step_metrics())
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


def test_logging_by_hand(tmp_path):
    model = make_net()
    monitor = monitor_of(model, tmp_path, due=lambda step: step == 1)
    for step in range(3):
        monitor.begin_step(step)
        monitor.log_scalar("mine/a", 1)
        monitor.log_scalar("mine/a", torch.tensor(2.0))
        monitor.log_scalars({"b": 1.0, "c": 2.0})
        monitor.log_scalar("forced", 5.0, force=True)
        monitor.log_tensor("t", torch.arange(4.0))
        monitor.log_tensor("top", torch.arange(4.0), aggregation_fn=torch.max)
        monitor.end_step()
        if step == 1:
            assert monitor.get_step_metrics() == {
                "mine/a": 1.5, "b": 1.0, "c": 2.0, "forced": 5.0, "t": 1.5, "top": 3.0,
            }  # fmt: skip
        else:
            assert monitor.get_step_metrics() == {"forced": 5.0}
    with pytest.raises(ValueError, match="log_tensor"):
        monitor.log_scalar("x", torch.ones(2))
    assert [len(v) for v in monitor.get_all_metrics().values()] == [1, 6, 1]


def test_misuse_is_told_at_once():
    model = make_net()
    monitor = ModuleMonitor(run=False)
    assert monitor.current_step is None
    with pytest.raises(ValueError, match=r"^Set the module to monitor"):
        monitor.begin_step(0)
    with pytest.raises(ValueError, match=r"^Set the module to monitor"):
        monitor.set_reference_module(model)
    with pytest.raises(ValueError, match=r"^Set the reference module"):
        monitor.run_reference(torch.ones(1))
    monitor.set_module(model)
    with pytest.raises(ValueError, match=r"^Module has already been set"):
        monitor.set_module(model)
    monitor.add_gradient_metric("n", stats.norm)
    with pytest.raises(ValueError, match="Gradient metric n already exists"):
        monitor.add_gradient_metric("n", stats.rms)
    with pytest.raises(ValueError, match="bad regex"):
        monitor.add_activation_metric("x", stats.norm, "[")
    with pytest.raises(ValueError, match="needs a function"):
        monitor.add_activation_metric("x", 3)
    with pytest.raises(ValueError, match="monitor_step_fn"):
        ModuleMonitor(10)
    with pytest.raises(ValueError, match="no regex"):
        ModuleMonitor(excluded_modules_regex="(")
    monitor.begin_step(5)
    with pytest.raises(ValueError, match="go back"):
        monitor.begin_step(4)


@pytest.mark.parametrize("bad", [lambda _x: 1 / 0, lambda _x: None, lambda _x: "text",
                                 lambda x: x @ torch.ones(999)])  # fmt: skip
def test_a_metric_that_fails_is_told_once_and_training_goes_on(tmp_path, caplog, bad):
    model = make_net()
    monitor = monitor_of(model, tmp_path)
    monitor.add_gradient_metric("bad", bad, metric_regex="blocks.*bias|scale|head")
    monitor.add_gradient_metric("good", stats.norm)
    for step in range(3):
        found = one_step(monitor, model, step=step)
        assert "gradient/head.weight/good" in found
    told = [r.message for r in caplog.records if "bad" in r.message]
    assert len(told) == 1
    assert "'bad'" in told[0]
    assert "step 0" in told[0]
    monitor.close()
    with torchvitals.open_run(tmp_path / "run") as history:
        assert len(history.events("metric_failed")) == 1


def test_an_aggregation_that_fails_is_told_and_nothing_else_is_lost(caplog):
    model = make_net()
    monitor = monitor_of(model)
    monitor.add_activation_metric("bad", lambda x: x, metric_aggregation_fn=lambda _x: "nothing")
    monitor.add_activation_metric("good", lambda x: x.mean())
    found = one_step(monitor, model)
    assert "activation/head/good" in found
    assert not [key for key in found if key.endswith("bad")]
    assert len([r for r in caplog.records if "aggregation" in r.message]) == 1


def test_looking_away_nests_and_unmonitored_steps_cost_no_hook():
    from torch.nn.modules import module as internals

    model = make_net()
    monitor = monitor_of(model, due=lambda step: step == 1)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    monitor.begin_step(0)
    assert not internals._global_forward_hooks
    monitor.end_step()
    monitor.begin_step(1)
    with monitor.no_monitor():
        with monitor.no_monitor():
            assert not monitor.is_monitoring()
        assert not monitor.is_monitoring()
        model(batches(1)[0])
    assert monitor.is_monitoring()
    monitor.end_step()
    assert monitor.get_step_metrics() == {}
    assert not internals._global_forward_hooks


def test_excluded_modules_and_names_of_ones_own():
    model = make_net()
    monitor = monitor_of(model, excluded_modules_regex=r"blocks\.1")
    monitor.add_activation_metric("mean", lambda x: x.mean())
    found = one_step(monitor, model)
    assert not [key for key in found if "blocks.1" in key]
    named = monitor_of(model, format_module_name_fn=lambda name: f"m_{name}")
    named.add_parameter_metric("norm", stats.norm)
    assert "parameter/m_head.weight/norm" in one_step(named, model)


class Odd(nn.Module):
    """Tuples, dicts, keyword arguments, several calls."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.pair = Pair()

    def forward(self, *, x):
        first, second = self.pair(self.inner(self.inner(x)))
        return {"out": first, "more": [second]}


class Pair(nn.Module):
    def forward(self, x):
        return x, x + 1


def test_modules_with_odd_outputs_and_calls():
    model = Odd()
    monitor = monitor_of(model)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    monitor.begin_step(0)
    calls = []
    model.inner.register_forward_hook(lambda _m, _a, out: calls.append(out.detach()))
    with torch.no_grad():
        out = model(x=torch.ones(3, 2))
    monitor.end_step()
    found = monitor.get_step_metrics()
    assert found["activation/pair:out[0]/mean"] == pytest.approx(float(out["out"].mean()))
    assert found["activation/pair:out[1]/mean"] == pytest.approx(float(out["more"][0].mean()))
    assert found["activation/[root module]:out[out]/mean"] == pytest.approx(
        float(out["out"].mean())
    )
    assert found["activation/inner/mean"] == pytest.approx(float(torch.cat(calls).mean()))


def test_activation_checkpointing_counts_once():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make_net()

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    model = Checkpointed()
    monitor = monitor_of(model)
    monitor.add_activation_metric("num", lambda x: torch.ones(1), metric_aggregation_fn=torch.sum)
    assert one_step(monitor, model)["activation/net.norm/num"] == 2  # called twice, by itself


def test_the_model_can_be_copied_and_saved_while_a_monitor_is_set():
    class Mixed(nn.Module, MonitorMixin):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x):
            return self.lin(x)

    model = Mixed()
    monitor = monitor_of(model)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    monitor.begin_step(0)
    twin = copy.deepcopy(model)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    assert model.is_monitoring
    assert model.get_module_monitor() is monitor
    assert not twin.is_monitoring
    assert twin.get_module_monitor() is None
    assert not vars(twin).keys() - vars(Mixed()).keys()
    monitor.end_step()
    assert not vars(model).keys() - vars(Mixed()).keys()


class Layer(nn.Module, MonitorMixin):
    """No explicit call of the mixin's __init__."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)

    def forward(self, x):
        y = self.lin(x)
        if self.is_monitoring:
            name = "reference" if self.is_reference_module else "mine"
            self.get_module_monitor().log_tensor(f"custom/{name}", y.norm(dim=-1))
        return y


def test_the_mixin_without_a_monitor_and_with_a_reference():
    model = nn.Sequential(Layer())
    assert not model[0].is_monitoring
    assert model[0].get_module_monitor() is None
    assert not model[0].is_reference_module
    model(torch.ones(3, 2))
    monitor = monitor_of(model, reference="init")
    monitor.begin_step(0)
    x = torch.ones(3, 2)
    y = model(x)
    monitor.run_reference(x)
    monitor.end_step()
    found = monitor.get_step_metrics()
    assert found["custom/mine"] == pytest.approx(float(y.detach().norm(dim=-1).mean()))
    assert found["custom/reference"] == pytest.approx(found["custom/mine"])
    monitor.close()
    assert model[0].get_module_monitor() is None


@pytest.mark.parametrize("reference_first", [True, False])
def test_differences_to_a_reference_of_another_dtype(reference_first):
    model = make_net()
    reference = copy.deepcopy(model).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01 * torch.randn_like(p))
    monitor = monitor_of(model)
    monitor.set_reference_module(reference)
    assert monitor.has_reference_module()
    monitor.add_activation_difference_metric("l2", lambda a, b: (a - b).norm(dim=-1))
    monitor.add_parameter_difference_metric("l2", lambda p, q: (p - q).norm())
    x = batches(1)[0]
    monitor.begin_step(0)
    if reference_first:
        monitor.run_reference(x)
    y = model(x)
    if not reference_first:
        monitor.run_reference(x)
    monitor.monitor_parameters()
    monitor.end_step()
    found = monitor.get_step_metrics()
    with torch.no_grad():
        difference = (y.detach().double() - reference(x.double())).norm(dim=-1).mean()
    root = "activation_difference/[root module]/l2"
    assert found[root] == pytest.approx(float(difference), rel=1e-4)
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        expected = float((p.double() - q).detach().norm())
        assert found[f"parameter_difference/{name}/l2"] == pytest.approx(expected, rel=1e-4)
    monitor.remove_reference_module()
    assert not monitor.has_reference_module()


def test_the_reference_draws_no_random_numbers_and_keeps_its_mode():
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    monitor = monitor_of(model, reference="init")
    monitor.begin_step(0)
    state = torch.get_rng_state()
    before = copy.deepcopy(monitor.reference_module.state_dict())
    monitor.run_reference(torch.randn(4, 2, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), state)
    after = monitor.reference_module.state_dict()
    assert all(torch.equal(after[k], before[k]) for k in before)
    assert all(module.training for module in monitor.reference_module.modules())


def test_saved_metrics_load_back_equal(tmp_path):
    model = make_net()
    monitor = monitor_of(model, tmp_path)
    for step, value in enumerate((1.5, math.nan, math.inf, -0.0)):
        monitor.begin_step(step)
        monitor.log_scalar("x", value)
        monitor.end_step()
    monitor.save(tmp_path / "metrics.json")
    loaded = torchvitals.load_metrics(tmp_path / "metrics.json")
    assert json.dumps(loaded) == json.dumps(monitor.get_all_metrics())
    assert math.isnan(loaded[1]["x"])
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="no file of metrics"):
        torchvitals.load_metrics(tmp_path / "other.json")


def test_monitoring_changes_nothing():
    results = []
    for watched in (False, True):
        model = make_net()
        torch.manual_seed(0)
        monitor = monitor_of(model, reference="init")
        monitor.add_activation_metric("mean", lambda x: x.mean())
        monitor.add_gradient_metric("norm", stats.norm)
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for step, x in enumerate(batches(5)):
            if watched:
                monitor.begin_step(step)
                monitor.run_reference(x)
            loss = loss_of(model, nn.functional.dropout(x))
            loss.backward()
            if watched:
                monitor.monitor_gradients()
            optimizer.step()
            optimizer.zero_grad()
            monitor.end_step()
            losses.append(loss.item())
        results.append(losses)
    assert results[0] == results[1]


def test_lambdas_that_spell_a_statistic_are_recognised_and_nothing_else_is():
    from torchvitals.stats.named import recognised

    factor = 2.0
    assert recognised(lambda g: g.norm()) is stats.norm
    assert recognised(lambda p: p.abs().max()) is stats.absmax
    assert recognised(stats.rms) is stats.rms
    for other in (
        lambda x: x.norm(1),
        lambda x: x.norm(dim=-1),
        lambda x: factor * x.norm(),
        lambda x: x.std(),  # divides by n − 1
        lambda x, p=2: x.norm(),
        lambda *x: x.norm(),
        torch.norm,
        torch.Tensor.norm,
        nn.Identity(),
    ):
        assert recognised(other) is None
    model = make_net()
    monitor = monitor_of(model)
    monitor.add_gradient_metric("plain", lambda g: g.norm())
    monitor.add_gradient_metric("own", lambda g: g.norm() * 1.0)
    found = one_step(monitor, model)
    for key, value in found.items():
        if key.endswith("/plain"):
            assert value == pytest.approx(found[key.replace("/plain", "/own")], rel=1e-5)


class Reads(TorchDispatchMode):
    """Counts how often a tensor's value is brought to Python."""

    def __init__(self):
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_values_are_read_together_not_one_by_one():
    model = make_net()
    monitor = monitor_of(model)
    monitor.add_activation_metric("l2", lambda x: x.norm(dim=-1))
    monitor.add_gradient_metric("l1", lambda g: g.abs().sum())
    monitor.begin_step(0)
    loss_of(model, batches(1)[0]).backward()
    with Reads() as reads:
        monitor.monitor_gradients()
        monitor.end_step()
    assert len(monitor.get_step_metrics()) > 20
    assert reads.num == 0  # .tolist() of one stacked tensor is no read of a single value


def test_activations_are_not_copied():
    model = make_net()
    monitor = monitor_of(model)
    seen = []
    monitor.add_activation_metric("here", lambda x: seen.append(x.data_ptr()) or 0.0, "head$")
    outputs = []
    model.head.register_forward_hook(lambda _m, _a, out: outputs.append(out.data_ptr()))
    one_step(monitor, model)
    assert seen == outputs


def test_memory_does_not_grow_with_the_run(tmp_path):
    model = nn.Linear(4, 4)
    monitor = monitor_of(model, tmp_path)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    monitor.add_activation_metric("most", lambda x: x.amax(dim=-1), metric_aggregation_fn=torch.max)
    monitor.add_parameter_metric("norm", stats.norm)

    def steps(first, last):
        for step in range(first, last):
            monitor.begin_step(step)
            model(torch.ones(2, 4))
            monitor.monitor_parameters()
            monitor.log_scalar("x", step)
            monitor.end_step()
        monitor._keeping._recorder.flush()
        gc.collect()
        return len(gc.get_objects())

    steps(0, 100)
    before = steps(100, 200)
    assert steps(200, 1200) - before < 500  # a thousand steps of five values would be 5,000
    assert len(monitor.get_all_metrics()) == 1200
