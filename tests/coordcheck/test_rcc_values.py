"""Every key of the refined coordinate check against float64 numpy, and torch-module-monitor."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_module_monitor as peer
from torch import Tensor, nn

from torchvitals.coordcheck import RefinedCoordinateCheck
from torchvitals.monitor.module_monitor import ModuleMonitor

from .monitors import PlainMonitor, moved

EFFECTIVE, PROPAGATING = "RCC (W_t-W_0)x_t", "RCC W_0(x_t-x_0)"


class Small(nn.Module):
    """One of each: embedding, norm, linear with and without bias, and a layer without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm(6)
        self.up = nn.Linear(6, 9)
        self.act = nn.Tanh()
        self.down = nn.Linear(9, 4, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.down(self.act(self.up(self.norm(self.embed(ids)))))


def pair(make: Callable[[], nn.Module], by: float = 0.05) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    reference = make()
    moved(reference, 0.3, seed=3)  # biases and norms are not at 0 and 1
    return moved(copy.deepcopy(reference), by), reference


def checked(
    module: nn.Module, reference: nn.Module, *inputs: Any, also: tuple[str, ...] = ()
) -> dict[str, float]:
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor, also=also) as check:
        monitor.begin_step(0)
        with torch.no_grad():
            reference(*inputs)
        module(*inputs)
        check.refined_coordinate_check()
        return monitor.end_step()


def size(values: np.ndarray[Any, Any]) -> float:
    """L2 over the last dimension, the mean over everything else."""
    return float(np.sqrt((values**2).sum(axis=-1)).mean())


def numpy_of(module: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {name: value.double().numpy() for name, value in module.state_dict().items()}


def normalised(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)


def expected(module: nn.Module, reference: nn.Module, ids: Tensor) -> dict[str, float]:
    """All keys by the definitions, in float64, without torch."""
    t, o = numpy_of(module), numpy_of(reference)
    out: dict[str, float] = {}
    which = ids.numpy()
    xt, x0 = t["embed.weight"][which], o["embed.weight"][which]
    out[f"{EFFECTIVE}/embed/l2norm"] = size(xt - x0)

    def inputs(name: str) -> None:
        out[f"RCC x_t/{name}/l2norm"] = size(xt)
        out[f"RCC (x_t-x_0)/{name}/l2norm"] = size(xt - x0)

    def weighted(
        name: str, apply: Callable[[Any, Any], Any], vt: Any, v0: Any, biased: bool = True
    ) -> tuple[Any, Any]:
        wt, wo = t[f"{name}.weight"], o[f"{name}.weight"]
        bt, bo = (t[f"{name}.bias"], o[f"{name}.bias"]) if biased else (0.0, 0.0)
        inputs(name)
        out[f"{EFFECTIVE}/{name}/l2norm"] = size(apply(vt, wt) + bt - apply(vt, wo) - bo)
        out[f"{PROPAGATING}/{name}/l2norm"] = size(apply(vt, wo) - apply(v0, wo))
        out[f"{EFFECTIVE}/{name}.weight/l2norm"] = size(apply(vt, wt - wo))
        out[f"{PROPAGATING}/{name}.weight/l2norm"] = size(apply(vt - v0, wo))
        out[f"{EFFECTIVE}/{name}.weight/W_t x_t/l2norm"] = size(apply(vt, wt))
        out[f"{PROPAGATING}/{name}.weight/W_0 x_0/l2norm"] = size(apply(v0, wo))
        return apply(vt, wt) + bt, apply(v0, wo) + bo

    nt, n0 = normalised(xt), normalised(x0)
    out[f"{EFFECTIVE}/norm.weight/x_t/l2norm"] = size(nt)
    out[f"{PROPAGATING}/norm.weight/x_t-x_0/l2norm"] = size(nt - n0)
    xt, x0 = weighted("norm", lambda x, w: x * w, nt, n0)
    xt, x0 = weighted("up", lambda x, w: x @ w.T, xt, x0)
    inputs("act")
    out[f"{EFFECTIVE}/act/l2norm"] = 0.0
    xt, x0 = np.tanh(xt), np.tanh(x0)
    out[f"{PROPAGATING}/act/l2norm"] = size(xt - x0)
    weighted("down", lambda x, w: x @ w.T, xt, x0, biased=False)
    return out


IDS = torch.arange(30).reshape(5, 6) % 11


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_every_key_has_its_value(mode: str) -> None:
    module, reference = pair(Small)
    getattr(module, mode)()
    found = checked(module, reference, IDS)
    right = expected(module, reference, IDS)
    assert set(found) == set(right)
    for key, value in right.items():
        assert found[key] == pytest.approx(value, rel=1e-5, abs=1e-7), key


def test_root_is_checked_only_when_it_is_a_layer() -> None:
    module, reference = pair(lambda: nn.Linear(3, 4))
    found = checked(module, reference, torch.randn(5, 3))
    assert f"{EFFECTIVE}/[root module].weight/l2norm" in found


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_same_values_as_torch_module_monitor(mode: str) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(11, 16)
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
                for _ in range(2)
            )
            self.bare = nn.LayerNorm(16, elementwise_affine=False)
            self.readout = nn.Linear(16, 11, bias=False)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embed(ids)
            for block in self.blocks:
                x = x + block(x)
            return self.readout(self.bare(x))

    module, reference = pair(Deep)
    getattr(module, mode)()
    found = checked(module, reference, IDS)

    other = peer.ModuleMonitor(monitor_step_fn=lambda _step: True)
    other.set_module(copy.deepcopy(module))
    other.set_reference_module(copy.deepcopy(reference))
    check = peer.RefinedCoordinateCheck(other)
    other.begin_step(0)
    with torch.no_grad():
        other.reference_module(IDS)
    other.module(IDS)
    check.refined_coordinate_check()
    other.end_step()
    theirs = {k: v for k, v in other.get_step_metrics().items() if k.startswith("RCC")}
    assert len(theirs) > 60
    assert set(found) == set(theirs)
    for key, value in theirs.items():
        assert found[key] == pytest.approx(float(value), rel=1e-5, abs=1e-5), key


def test_a_norm_without_a_weight_has_one_of_ones() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6, elementwise_affine=False))

    module, reference = pair(make)
    x = torch.randn(5, 3)
    found = checked(module, reference, x, also=("alignment",))
    nt, n0 = (normalised(one[0](x).detach().double().numpy()) for one in (module, reference))
    right = {
        f"{EFFECTIVE}/1/l2norm": 0.0,
        f"{PROPAGATING}/1/l2norm": size(nt - n0),
        f"{EFFECTIVE}/1.weight/l2norm": 0.0,
        f"{PROPAGATING}/1.weight/l2norm": size(nt - n0),
        f"{EFFECTIVE}/1.weight/W_t x_t/l2norm": size(nt),
        f"{PROPAGATING}/1.weight/W_0 x_0/l2norm": size(n0),
        f"{EFFECTIVE}/1.weight/x_t/l2norm": size(nt),
        f"{PROPAGATING}/1.weight/x_t-x_0/l2norm": size(nt - n0),
    }
    theirs = {
        k: v for k, v in found.items() if k.startswith((EFFECTIVE, PROPAGATING)) and "/1" in k
    }
    assert theirs == pytest.approx(right, rel=1e-5)


def test_same_values_with_the_module_monitor() -> None:
    module, reference = pair(Small)
    monitor = ModuleMonitor(lambda step: step % 2 == 0, run=False)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.set_module(module)
        monitor.set_reference_module(reference)
        monitor.add_activation_metric("mean", lambda x: x.float().mean())
        for step in range(3):
            monitor.begin_step(step)
            monitor.run_reference(IDS)
            module(IDS)
            check.refined_coordinate_check()
            monitor.end_step()
            found = monitor.get_step_metrics()
            if step == 1:
                assert found == {}
                continue
            right = expected(module, reference, IDS)
            assert {key for key in found if key.startswith("RCC")} == set(right)
            for key, value in right.items():
                assert found[key] == pytest.approx(value, rel=1e-5, abs=1e-7), key
            # What is run again for the check is no activation of the step.
            with monitor.no_monitor(), torch.no_grad():
                mean = float(module.act(module.up(module.norm(module.embed(IDS)))).mean())
            assert found["activation/act/mean"] == pytest.approx(mean, rel=1e-5)
    monitor.close()


def test_bfloat16_is_reduced_in_float32_and_small_updates_are_seen() -> None:
    """Of two outputs rounded to 8 bits the difference would be noise ten times the update."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(512, 1024, bias=False)).bfloat16()

    torch.manual_seed(0)
    reference = make()
    module = copy.deepcopy(reference)
    with torch.no_grad():  # one weight in 64 by its last bit
        bits = module[0].weight.view(torch.int16)
        bits[:, ::64] += 1
    x = torch.randn(16, 512).bfloat16()
    found = checked(module, reference, x)
    wt, w0 = (model[0].weight.detach().double().numpy() for model in (module, reference))
    right = size(x.double().numpy() @ (wt - w0).T)
    naive = size((module(x) - reference(x)).detach().double().numpy())
    assert abs(naive / right - 1) > 0.5
    for key in (f"{EFFECTIVE}/0/l2norm", f"{EFFECTIVE}/0.weight/l2norm"):
        assert found[key] == pytest.approx(right, rel=1e-4)
    right = size(x.double().numpy() @ wt.T)
    assert found[f"{EFFECTIVE}/0.weight/W_t x_t/l2norm"] == pytest.approx(right, rel=1e-5)


def test_rms_and_alignment_keys_on_demand() -> None:
    module, reference = pair(lambda: nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 5)))
    x = torch.randn(7, 8)
    plain = checked(module, reference, x)
    found = checked(module, reference, x, also=("rms", "alignment"))
    assert {key: found[key] for key in plain} == plain
    key = f"{EFFECTIVE}/0.weight"
    assert found[f"{key}/rms"] == pytest.approx(plain[f"{key}/l2norm"] / 32**0.5)
    wt, w0 = (model[1].weight.detach().double().numpy() for model in (module, reference))
    largest = np.linalg.norm(wt - w0, 2)
    right = plain[f"{EFFECTIVE}/1.weight/l2norm"] / (largest * plain["RCC x_t/1/l2norm"])
    assert found[f"{EFFECTIVE}/1.weight/alignment"] == pytest.approx(right, rel=1e-4)
    right = plain[f"{PROPAGATING}/1.weight/l2norm"] / (
        np.linalg.norm(w0, 2) * plain["RCC (x_t-x_0)/1/l2norm"]
    )
    assert found[f"{PROPAGATING}/1.weight/alignment"] == pytest.approx(right, rel=1e-4)
    with pytest.raises(ValueError, match="also can hold rms, alignment, got"):
        RefinedCoordinateCheck(PlainMonitor(), also=("rsm",))
