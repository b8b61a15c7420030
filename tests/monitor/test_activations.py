"""Activations: over calls and micro-batches, in any structure, dead units, saturation."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchvitals
from torchvitals.record import Key

from .training import batches, make_net

BACKENDS = ["native", "torch"]


@pytest.fixture(autouse=True, params=["taps", "hook"])
def way(request, monkeypatch):
    """Both ways to see outputs must see the same."""
    usable = property(lambda _taps: request.param == "taps")
    monkeypatch.setattr("torchvitals.probes.taps.Taps.usable", usable)


def watched(tmp_path, model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"every": 1, "run": tmp_path / "run", **options}
    return torchvitals.watch(model, optimizer, **options), optimizer


def outputs_of(model, names, run):
    """What these modules put out while `run()` runs, collected with ordinary hooks."""
    seen = {name: [] for name in names}
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, name=name: seen[name].append(out.detach().clone())
        )
        for name in names
    ]
    run()
    for handle in handles:
        handle.remove()
    return {name: torch.cat([x.flatten() for x in xs]).double() for name, xs in seen.items()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_calls_and_micro_batches_of_a_step_count(tmp_path, backend):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model, backend=backend)
    names = ["blocks.0.0", "blocks.0.1", "norm", "head"]  # norm is called twice a forward

    for step in range(1, 4):  # the first step measures at once, later ones in company

        def run(step=step):
            for x in batches(3, seed=step):
                model(x).square().mean().backward()

        seen = outputs_of(model, names, run)
        optimizer.step()
        optimizer.zero_grad()
        row = monitor.history.row(step)
        for name, x in seen.items():
            got = {k.stat: v for k, v in row.items() if k[:2] == ("activation", name)}
            assert got["mean"] == pytest.approx(float(x.mean()), rel=1e-4, abs=1e-6)
            assert got["std"] == pytest.approx(float(x.std(unbiased=False)), rel=1e-5)
            assert got["rms"] == pytest.approx(float(x.square().mean().sqrt()), rel=1e-5)
            assert (got["min"], got["max"]) == pytest.approx((float(x.min()), float(x.max())))
            assert got["zero_frac"] == pytest.approx(float((x == 0).double().mean()))
            counts = monitor.history.histogram(name, "activation", step=step).counts
            assert counts.sum() == x.numel()
    monitor.close()


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.relu, self.two = nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8)
        self.free = nn.Linear(8, 8)
        self.late = False

    def forward(self, x):
        x = self.two(self.relu(self.one(x)))
        y = self.free(x)
        if self.late:
            y.mul_(0.0)
        return y


def test_outputs_overwritten_in_place_are_measured_before(tmp_path):
    model = InPlace()
    monitor, optimizer = watched(tmp_path, model)
    for step in range(1, 4):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        want = nn.functional.linear(x, model.one.weight, model.one.bias).detach()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        row = monitor.history.row(step)
        assert row[Key("activation", "one", "min")] == pytest.approx(float(want.min()))
        assert row[Key("activation", "one", "min")] < 0  # not the ReLU's output
    monitor.close()


def test_an_output_overwritten_for_the_first_time_is_left_out_never_wrong(tmp_path):
    model = InPlace()
    monitor, optimizer = watched(tmp_path, model)
    for step in range(1, 5):
        model.late = step >= 3
        model(torch.randn(16, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    steps, values = monitor.history.series("activation/free/rms")
    assert steps.tolist() == [1, 2, 4]
    assert (values > 0).all()
    monitor.close()


class Residual(nn.Module):
    """As in a ResNet: one in-place ReLU, called with a fresh tensor and with one written into."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.relu = nn.Linear(8, 8), nn.Linear(8, 8), nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        y = self.two(self.relu(self.one(x)))
        y += x
        return self.head(self.relu(y))


def test_a_module_called_twice_in_place_is_measured_in_every_step(tmp_path):
    model = Residual()
    monitor, optimizer = watched(tmp_path, model)
    want = {}
    for step in range(1, 6):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        with torch.no_grad():
            first = model.one(x).relu()
            second = (model.two(first) + x).relu()
        want[step] = float(torch.cat([first, second]).double().square().mean().sqrt())
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found = monitor.history.series("activation/relu/rms")
    assert dict(zip(found.steps.tolist(), found.values.tolist(), strict=True)) == pytest.approx(
        want, rel=1e-5
    )
    monitor.close()


@dataclass
class Output:
    logits: torch.Tensor
    extra: dict


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5)
        self.parts = Parts()
        self.named = Named()

    def forward(self, x):
        y, _ = self.lstm(x)
        return self.named(self.parts(x, scale=2.0)[0]).logits.sum() + y.sum()


class Parts(nn.Module):
    def forward(self, x, *, scale):
        return [x * scale, (x.long(), x + 1)]


class Named(nn.Module):
    def forward(self, x):
        return Output(logits=x, extra={"twice": 2 * x, "label": "text"})


def test_outputs_of_any_structure_and_keyword_calls(tmp_path):
    model = Several()
    monitor, optimizer = watched(tmp_path, model)
    model(torch.randn(3, 2, 4)).backward()
    optimizer.step()
    sites = {k.site for k in monitor.history.keys(kind="activation")}
    assert sites == {
        "lstm:out[0]", "lstm:out[1][0]", "lstm:out[1][1]",
        "parts:out[0]", "parts:out[1][1]",
        "named:out[logits]", "named:out[extra][twice]",
    }  # fmt: skip
    monitor.close()


def test_evaluation_is_not_training(tmp_path):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model)
    x, y = batches(2)
    model.eval()
    with torch.no_grad():
        model(1000 * y)
    model.train()
    want = outputs_of(model, ["head"], lambda: model(x).square().mean().backward())["head"]
    optimizer.step()
    got = monitor.history.row(1)[Key("activation", "head", "max")]
    assert got == pytest.approx(float(want.max()))
    monitor.close()


def test_evaluation_on_request(tmp_path):
    model = make_net().eval()
    monitor, optimizer = watched(tmp_path, model, eval_activations=True)
    model(batches(1)[0]).sum().backward()
    optimizer.step()
    assert monitor.history.keys(kind="activation", site="^head$")
    monitor.close()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_count_once(tmp_path, reentrant):
    layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    model = nn.ModuleDict({"layer": layer})
    monitor, optimizer = watched(tmp_path, model)
    x = torch.randn(4, 8, requires_grad=True)
    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    optimizer.step()
    counts = monitor.history.histogram("layer.0", "activation").counts
    assert counts.sum() == 32
    monitor.close()


def test_regex_chooses_modules_and_excludes_win(tmp_path):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model, activations=r"blocks\.\d", exclude=r".*\.1$")
    model(batches(1)[0]).sum().backward()
    optimizer.step()
    sites = [k.site for k in monitor.history.keys(kind="activation", stat="rms")]
    assert sites == ["blocks.0.0", "blocks.0.2", "blocks.0", "blocks.1.0", "blocks.1.2"]
    monitor.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("image", [False, True])
def test_dead_units_are_dead_over_many_batches(tmp_path, backend, image):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 10, 1) if image else nn.Linear(3, 10)
    model = nn.Sequential(layer, nn.ReLU())
    with torch.no_grad():
        model[0].weight.mul_(5.0)
        model[0].bias[:4] = -100.0  # never active
        model[0].bias[4:] = -1.0  # mostly silent in one batch, active now and then
    monitor, optimizer = watched(
        tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.0), backend=backend
    )
    for _ in range(40):
        x = torch.randn(8, 3, 4, 4) if image else torch.randn(64, 3)
        model(x).sum().backward()
        optimizer.step()
    steps, values = monitor.history.series("activation/1/dead_frac")
    assert steps[0] == 8  # not before enough was seen
    assert values == pytest.approx(np.full(len(values), 0.4))
    assert not monitor.history.keys(kind="activation", site="^0$", stat="dead_frac")
    monitor.close()


def test_units_that_come_back_are_not_dead_any_more(tmp_path):
    model = nn.Sequential(nn.Linear(3, 10), nn.ReLU())
    with torch.no_grad():
        model[0].bias.fill_(-100.0)
    monitor, optimizer = watched(
        tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.0), histograms=False
    )
    for step in range(80):
        if step == 8:
            with torch.no_grad():
                model[0].bias.fill_(1.0)
        model(torch.randn(64, 3)).sum().backward()
        optimizer.step()
    values = monitor.history.series("activation/1/dead_frac").values
    assert values[0] == 1.0
    assert values[-1] == 0.0
    monitor.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_share_of_saturated_outputs(tmp_path, backend):
    model = nn.Sequential(nn.Linear(4, 50), nn.Tanh(), nn.Linear(50, 50), nn.Sigmoid())
    monitor, optimizer = watched(tmp_path, model, backend=backend)
    x = torch.randn(32, 4) * 3
    seen = outputs_of(model, ["1", "3"], lambda: model(x).sum().backward())
    optimizer.step()
    row = monitor.history.row(1)
    tanh = float((seen["1"].abs() >= 0.95).double().mean())
    sigmoid = float(((seen["3"] <= 0.025) | (seen["3"] >= 0.975)).double().mean())
    assert row[Key("activation", "1", "saturated_frac")] == pytest.approx(tanh, abs=1e-6)
    assert row[Key("activation", "3", "saturated_frac")] == pytest.approx(sigmoid, abs=1e-6)
    assert 0 < tanh < 1
    monitor.close()


def test_non_finite_activations_are_counted(tmp_path):
    model = nn.Linear(2, 3)
    monitor, optimizer = watched(tmp_path, model)
    model(torch.tensor([[float("nan"), 1.0], [1.0, 1.0]])).sum().backward()
    optimizer.step()
    root = "[root module]"
    row = monitor.history.row(1)
    assert row[Key("activation", root, "num_nan")] == 3
    assert np.isfinite(row[Key("activation", root, "rms")])
    monitor.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_dormant_units_are_far_below_the_layers_mean(tmp_path, backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 1), nn.ReLU())
    with torch.no_grad():
        model[0].weight[:3] *= 0.005  # alive in half of the rows, but only just
        model[0].bias[:3] = 0.0
        model[0].bias[3:5] = -100.0  # dead, and dormant with it
        model[2].weight.zero_()
        model[2].bias.fill_(-1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor, _ = watched(tmp_path, model, optimizer, backend=backend)
    seen = []
    for x in batches(8, size=64):
        seen.append(torch.relu(model[0](x)).detach())
        model(x).mean().backward()
        optimizer.step()
    means = torch.cat(seen).double().abs().mean(0)
    want = float((means <= 0.025 * means.mean()).double().mean())
    assert want == 0.5
    assert monitor.history.series("activation/1/dormant_frac").values.tolist() == [want]
    assert monitor.history.series("activation/1/dead_frac").values.tolist() == pytest.approx([0.2])
    # Where every unit is silent none is more so than others.
    assert monitor.history.series("activation/3/dead_frac").values.tolist() == [1.0]
    assert not len(monitor.history.series("activation/3/dormant_frac").values)
    monitor.close()


def test_inference_in_training_mode_is_seen_and_raises_nothing(tmp_path):
    """Monte Carlo dropout: tensors that do not count how often they are written into."""
    model = make_net()
    monitor, optimizer = watched(tmp_path, model)
    with monitor:
        for x in batches(4):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        def run():
            x, again = batches(2, seed=7)
            with torch.inference_mode():
                model(x)
            model(again).square().mean().backward()

        seen = outputs_of(model, ["norm", "head"], run)
        optimizer.step()
        for name, x in seen.items():
            got = monitor.history.series(Key("activation", name, "rms"))
            assert got.steps[-1] == 5
            assert got.values[-1] == pytest.approx(x.square().mean().sqrt().item(), rel=1e-6)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_output_without_a_shape_is_measured_by_its_values(tmp_path):
    kept = []

    class Ragged(nn.Module):
        def forward(self, x):
            kept.append(torch.cat([x[0], x[1, :3]]).double())
            return torch.nested.nested_tensor([x[0], x[1, :3]])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.ragged, self.act = nn.Linear(8, 8), Ragged(), nn.ReLU()

        def forward(self, x):
            x = self.act(self.first(x))
            self.ragged(x.detach())
            return x

    torch.manual_seed(0)
    model = Model()
    monitor, optimizer = watched(tmp_path, model)
    with monitor:
        for x in batches(3):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        history = monitor.history
        out = history.series("activation/act/rms")
        ragged = history.series("activation/ragged/rms")
        assert out.steps.tolist() == ragged.steps.tolist() == [1, 2, 3]
        np.testing.assert_allclose(
            ragged.values, [x.square().mean().sqrt().item() for x in kept], rtol=1e-6
        )
