"""torch.compile: everything is seen, the graph stays whole, nothing is compiled twice."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import _dynamo, nn
from torch.nn.modules import module as modules

import torchvitals
from torchvitals.monitor.monitor import _open_monitors

# torch's own, when it loads its compiler and when it compiles a layer by itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

STEPS = 5


@pytest.fixture(autouse=True)
def nothing_is_left_of_other_tests():
    """torch.compile warns of global hooks: monitors that a test left open have some."""
    for monitor in list(_open_monitors):
        monitor.close()
    left = [*modules._global_forward_hooks.values(), *modules._global_forward_pre_hooks.values()]
    assert left == []


class Block(nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.linear = nn.Linear(width, 32)
        self.act = act

    def forward(self, x):
        return self.act(self.linear(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Block(8, nn.GELU()), Block(32, nn.ReLU()))
        self.norm = nn.LayerNorm(32)
        self.head = Pair()

    def forward(self, x):
        out, _ = self.head(self.norm(self.layers(x)))
        return out


class Pair(nn.Module):
    """Puts out two tensors."""

    def forward(self, x):
        return x, x.mean()


def wrapped(model):
    return torch.compile(model, fullgraph=False)


def in_place(model):
    model.compile()
    return model


def whole_graph(model):
    return torch.compile(model, fullgraph=True)


def dynamic(model):
    return torch.compile(model, fullgraph=True, dynamic=True)


def regions(model):
    for layer in model.layers:
        layer.compile()
    return model


WAYS = {
    "wrapped": wrapped,
    "in place": in_place,
    "fullgraph": whole_graph,
    "dynamic shapes": dynamic,
    "regions": regions,
}


def train(way, path=None, *, grows=False, **kwargs):
    """Losses, compiler counters after the first two steps and at the end."""
    grows = grows or way == "dynamic shapes"
    _dynamo.reset()
    _dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model = WAYS[way](Net()) if way else Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = None
    if path is not None:
        monitor = torchvitals.watch(model, optimizer, run=path, every=2, **kwargs)
    losses, compiled = [], []
    for step in range(STEPS):
        torch.manual_seed(step)
        x = torch.randn(6 + (step if grows else 0), 5, 8)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        compiled.append(_dynamo.utils.counters["stats"]["unique_graphs"])
    breaks = sum(_dynamo.utils.counters["graph_break"].values())
    if monitor is not None:
        monitor.close()
    return losses, compiled, breaks, model


@pytest.mark.parametrize("way", WAYS)
def test_outputs_of_compiled_models_are_seen_and_nothing_changes(tmp_path, way):
    bare_losses, bare_graphs, bare_breaks, _ = train(way)
    losses, graphs, breaks, model = train(way, tmp_path / "run")
    assert losses == bare_losses
    assert breaks == bare_breaks
    assert graphs[-1] == bare_graphs[-1]
    # Monitored steps are 1, 2 and 4: nothing is compiled after the second step.
    assert graphs[1] == graphs[-1]
    assert not any(module._forward_hooks for module in model.modules())
    with torchvitals.open_run(tmp_path / "run") as history:
        assert not history.events("not_seen")
        sites = {key.site for key in history.keys("activation")}
        assert {"layers.0.linear", "layers.0.act", "layers.1.linear", "norm"} <= sites
        assert {"head:out[0]", "head:out[1]"} <= sites
        assert history.steps("activation").tolist() == [1, 2, 4]


@pytest.mark.parametrize("way", WAYS)
def test_values_are_those_of_the_same_model_run_eagerly(tmp_path, way):
    train(None, tmp_path / "eager", grows=way == "dynamic shapes")
    train(way, tmp_path / "compiled")
    with (
        torchvitals.open_run(tmp_path / "eager") as eager,
        torchvitals.open_run(tmp_path / "compiled") as compiled,
    ):
        keys = [k for k in eager.keys("activation") if k.stat in {"rms", "mean", "min", "max"}]
        assert set(keys) <= set(compiled.keys("activation"))
        for key in keys:
            np.testing.assert_allclose(
                compiled.series(key).values, eager.series(key).values, rtol=1e-3, atol=1e-5
            )


def test_a_model_that_ran_compiled_before_is_named(tmp_path, caplog):
    _dynamo.reset()
    model = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
    model(torch.randn(2, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        for _ in range(2):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    with torchvitals.open_run(tmp_path / "run") as history:
        assert len(history.events("not_seen")) == 1
        assert not history.keys("activation")
        assert history.steps("gradient").tolist() == [1, 2]
    assert "before it was watched" in caplog.text


def test_copies_of_a_compiled_model_are_not_watched(tmp_path):
    _dynamo.reset()
    model = Net()
    model.compile(backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1):
        double = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        x = torch.randn(2, 5, 8)
        model(x).sum().backward()
        for other in (double, loaded):
            other.layers[0].linear(100 * torch.randn(7, 5, 8))
        optimizer.step()
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.series("activation/layers.0.linear/max").values[0] < 10


def test_a_compiled_optimizer_step_is_seen(tmp_path):
    _dynamo.reset()
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    bare = nn.Linear(4, 4)
    bare.load_state_dict(model.state_dict())
    plain = torch.optim.AdamW(bare.parameters(), lr=torch.tensor(0.01))
    x = torch.randn(8, 4)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        step, plain_step = torch.compile(optimizer.step), torch.compile(plain.step)
        for _ in range(3):
            model(x).square().mean().backward()
            step()
            optimizer.zero_grad()
            bare(x).square().mean().backward()
            plain_step()
            plain.zero_grad()
        assert monitor.step_number == 3
    torch.testing.assert_close(model.weight, bare.weight, rtol=0, atol=0)
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.steps("gradient").tolist() == [1, 2, 3]
        assert (history.series("update/weight/ratio").values > 0).all()
