"""However modules are called, whenever things are set, and without a trace in the models."""

from __future__ import annotations

import copy
import gc
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils.checkpoint import checkpoint

from torchvitals import watch
from torchvitals.coordcheck import RefinedCoordinateCheck
from torchvitals.coordcheck.calls import Recorder
from torchvitals.record import ConfigError

from .monitors import PlainMonitor, moved
from .test_rcc_values import EFFECTIVE, PROPAGATING, checked, pair


def norm(tensor: Tensor) -> float:
    return float(tensor.detach().double().norm(dim=-1).mean())


class Told(nn.Module):
    """Keyword calls, and outputs of every shape."""

    def __init__(self, returns: str = "tuple") -> None:
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.returns = returns

    def forward(self, *, x: Tensor, scale: float = 1.0) -> Any:
        y = self.inner(input=x * scale)
        return {"tuple": (y, y.sum(-1)), "dict": {"y": y, "mask": y > 0}, "list": [None, y]}[
            self.returns
        ]


class Caller(nn.Module):
    def __init__(self, returns: str) -> None:
        super().__init__()
        self.told = Told(returns)

    def forward(self, x: Tensor) -> Any:
        return self.told(x=x, scale=2.0)


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("returns", "path"), [("tuple", "[0]"), ("dict", "[y]"), ("list", "[1]")])
def test_tuples_and_keywords(returns: str, path: str, mode: str) -> None:
    module, reference = pair(lambda: Caller(returns))
    getattr(module, mode)()
    getattr(reference, mode)()
    x = torch.randn(3, 4)
    found = checked(module, reference, x)
    right = norm(module.told.inner(2 * x) - reference.told.inner(2 * x))
    assert found[f"{EFFECTIVE}/told:out{path}/l2norm"] == pytest.approx(right, rel=1e-5)
    assert found[f"{EFFECTIVE}/told.inner/l2norm"] == pytest.approx(right, rel=1e-5)
    assert found["RCC x_t/told/l2norm"] == pytest.approx(norm(x))
    assert found["RCC x_t/told.inner/l2norm"] == pytest.approx(norm(2 * x))
    assert not any("mask" in key for key in found)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.shared(self.shared(x))


def test_modules_called_twice_count_both_times() -> None:
    module, reference = pair(Twice)
    x = torch.randn(3, 5)
    found = checked(module, reference, x)
    f, g = module.shared, reference.shared
    first, second = f(x) - g(x), f(f(x)) - g(f(x))
    assert found[f"{EFFECTIVE}/shared/l2norm"] == pytest.approx(norm(torch.cat([first, second])))
    moved_input = torch.cat([g(x) - g(x), g(f(x)) - g(g(x))])
    assert found[f"{PROPAGATING}/shared/l2norm"] == pytest.approx(norm(moved_input), rel=1e-5)


def test_micro_batches_in_one_check_or_in_several() -> None:
    module, reference = pair(Twice)
    parts = [torch.randn(3, 5), torch.randn(8, 5)]
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.begin_step(0)
        for x in parts:
            reference(x)
            module(x)
        check.refined_coordinate_check()
        together = monitor.end_step()
        monitor.begin_step(2)
        for x in parts:
            reference(x)
            module(x)
            check.refined_coordinate_check()
        assert monitor.end_step() == together
    whole = checked(module, reference, torch.cat(parts))
    assert whole == pytest.approx(together, rel=1e-5)


class InPlace(nn.Module):
    """Writes over its own inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.act = nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        x = x - 0.5
        x += self.block(x.clone())
        y = self.first(x)
        x.mul_(0)
        return y


def test_overwritten_tensors_do_not_falsify() -> None:
    module, reference = pair(InPlace)
    x = torch.randn(9, 6)
    before = module.first(x)  # what the in-place layer was given
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor) as check, torch.no_grad():
        steps = []
        for step in (0, 2, 4):
            monitor.begin_step(step)
            reference(x)
            module(x)
            check.refined_coordinate_check()
            steps.append(monitor.end_step())
    assert steps[0]["RCC x_t/act/l2norm"] == pytest.approx(norm(before), rel=1e-5)
    h = torch.relu(before) - 0.5
    second = h + module.block(h.clone())
    effective = torch.cat(
        [before - reference.first(x), module.first(second) - reference.first(second)]
    )
    assert steps[0][f"{EFFECTIVE}/first/l2norm"] == pytest.approx(norm(effective), rel=1e-5)
    assert steps[1] == steps[0]
    assert steps[2] == steps[0]


def test_tensors_are_held_not_copied_once_they_proved_to_stay() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    first, act, last = module
    recorder = Recorder(lambda: set(module))
    x = torch.randn(2, 4)
    try:
        recorder.open()
        for _ in range(2):
            y = module(x)
            calls = {inner: made[0] for inner, made in recorder.take().items()}
    finally:
        recorder.close()
    assert calls[last].output.data_ptr() == y.data_ptr()
    assert not calls[first].settled  # the next layer writes into its output
    assert not calls[act].settled
    assert calls[first].args[0].data_ptr() != x.data_ptr()


def test_a_settled_tensor_that_is_overwritten_after_all_is_left_out() -> None:
    module, reference = pair(lambda: nn.Sequential(nn.Linear(4, 4)))
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor) as check, torch.no_grad():
        for step, spoil in ((0, False), (2, True), (4, True)):
            x = torch.randn(2, 4)
            monitor.begin_step(step)
            right = norm(x)
            reference(x.clone())
            module(x)
            if spoil:
                x.zero_()
            check.refined_coordinate_check()
            found = monitor.end_step()
            if step == 2:
                assert found == {}
            else:
                assert found["RCC x_t/0/l2norm"] == pytest.approx(right)


def test_noise_and_buffers_of_training_stay_out() -> None:
    """Dropout would otherwise be most of the effective update; running statistics would move."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)), nn.Linear(6, 2)
        )

    module, reference = pair(make)
    module.train()
    reference.eval()
    x = torch.randn(32, 6)
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.begin_step(0)
        reference(x)
        module(x)
        state = copy.deepcopy(module.state_dict()), copy.deepcopy(reference.state_dict())
        buffers = [*module.buffers(), *reference.buffers()]
        dice = torch.get_rng_state()
        check.refined_coordinate_check()
        found = monitor.end_step()
    assert torch.equal(torch.get_rng_state(), dice)
    for model, before in zip((module, reference), state, strict=True):
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(
        a is b for a, b in zip([*module.buffers(), *reference.buffers()], buffers, strict=True)
    )
    assert module.training
    assert module[0][2].training
    assert not reference[0].training

    def quietly(model: nn.Module) -> Tensor:
        linear, batch_norm, _ = model[0]
        out = linear(x)
        out = (out - out.mean(0)) / (out.var(0, unbiased=False) + 1e-5).sqrt()
        return out * batch_norm.weight + batch_norm.bias

    right = norm(quietly(module) - quietly(reference))
    assert found[f"{EFFECTIVE}/0/l2norm"] == pytest.approx(right, rel=1e-4)
    assert found[f"{PROPAGATING}/0/l2norm"] == 0.0


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def test_activation_checkpointing_counts_once() -> None:
    module, reference = pair(Checkpointed)
    monitor = PlainMonitor(module, reference)
    x = torch.randn(3, 4)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.begin_step(0)
        with torch.no_grad():
            reference(x)
        module(x).sum().backward()
        check.refined_coordinate_check()
    assert [len(v) for k, v in monitor.logged.items() if k == "RCC x_t/inner/l2norm"] == [1]


class Routed(nn.Module):
    """An expert gets the rows its router likes."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 1)
        self.expert = nn.Linear(4, 4)
        self.rare = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[self.router(x)[:, 0] > 0]
        if len(chosen) > 10:
            self.rare(chosen)
        return self.expert(chosen).sum(0)


def test_inputs_of_other_shapes_have_only_the_effective_term() -> None:
    torch.manual_seed(0)
    reference = Routed()
    nn.init.constant_(reference.router.bias, -0.2)
    module = moved(copy.deepcopy(reference), 0.1)
    nn.init.constant_(module.router.bias, 5.0)  # all rows, more than before
    found = checked(module, reference, torch.randn(12, 4))
    for name in ("expert", "rare"):
        assert f"{EFFECTIVE}/{name}/l2norm" in found
        assert f"{PROPAGATING}/{name}/l2norm" not in found
        assert f"RCC (x_t-x_0)/{name}/l2norm" not in found


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / 8)


def test_linear_with_a_forward_of_its_own() -> None:
    module, reference = pair(lambda: nn.Sequential(nn.Linear(4, 8), Scaled(8, 3)))
    x = torch.randn(5, 4)
    found = checked(module, reference, x)
    h = module[0](x)
    right = norm(h / 8 @ (module[1].weight - reference[1].weight).T)
    assert found[f"{EFFECTIVE}/1.weight/l2norm"] == pytest.approx(right, rel=1e-4)
    right = norm(module[1](h) - module[1].bias)
    assert found[f"{EFFECTIVE}/1.weight/W_t x_t/l2norm"] == pytest.approx(right, rel=1e-4)


def test_wrapped_models_pair_with_plain_ones() -> None:
    module, reference = pair(lambda: nn.Sequential(nn.Linear(4, 4)))
    monitor = PlainMonitor(nn.DataParallel(module), reference)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.begin_step(0)
        reference(torch.ones(1, 4))
        monitor.module(torch.ones(1, 4))
        check.refined_coordinate_check()
    assert f"{EFFECTIVE}/module.0/l2norm" in monitor.end_step()  # named as the monitor names it


def test_excluded_modules_are_not_logged() -> None:
    module, reference = pair(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    monitor = PlainMonitor(module, reference)
    monitor.excluded = ("0",)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.begin_step(0)
        reference(torch.ones(1, 4))
        module(torch.ones(1, 4))
        check.refined_coordinate_check()
    assert {key.split("/")[1].removesuffix(".weight") for key in monitor.logged} == {"1"}


def num_hooks() -> tuple[int, int]:
    return len(hooks._global_forward_pre_hooks), len(hooks._global_forward_hooks)


def test_made_before_the_models_are_set() -> None:
    module, reference = pair(Twice)
    x = torch.randn(2, 5)
    right = checked(module, reference, x)
    monitor = PlainMonitor()
    check = RefinedCoordinateCheck(monitor)
    with pytest.raises(ValueError, match=r"^Set the module to monitor"):
        check.refined_coordinate_check()
    monitor.module = module
    with pytest.raises(ValueError, match=r"^Set the reference module"):
        check.refined_coordinate_check()
    monitor.begin_step(0)
    module(x)
    monitor.reference_module = reference  # even in the middle of a step
    reference(x)
    check.refined_coordinate_check()
    assert monitor.end_step() == right
    check.close()


@pytest.mark.parametrize(("which", "missing"), [("module", "reference"), ("reference", "module")])
def test_a_model_that_did_not_run_is_named(which: str, missing: str) -> None:
    module, reference = pair(Twice)
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.begin_step(4)
        {"module": module, "reference": reference}[which](torch.randn(2, 5))
        with pytest.raises(ValueError, match=f"{missing}.* was not called in step 4"):
            check.refined_coordinate_check()


def test_nothing_is_seen_in_other_steps_and_nothing_stays() -> None:
    module, reference = pair(Twice)
    monitor = PlainMonitor(module, reference)
    before = num_hooks()
    check = RefinedCoordinateCheck(monitor)
    x = torch.randn(2, 5)
    module(x)  # before any step
    monitor.begin_step(0)
    module(x)
    assert check._recorder._calls
    monitor.end_step()
    monitor.begin_step(1)  # not monitored; the step before was never asked about
    module(x)
    reference(x)
    assert not check._recorder._calls
    check.refined_coordinate_check()
    assert monitor.end_step() == {}
    monitor.begin_step(2)
    with monitor.no_monitor():
        module(x)
    reference(x)
    module(x)
    check.refined_coordinate_check()
    assert monitor.end_step() == checked(module, reference, x)
    check.close()
    check.close()
    assert num_hooks() == before
    assert check._watched == frozenset()


def test_a_check_that_is_dropped_takes_its_hooks_with_it() -> None:
    before = num_hooks()
    check = RefinedCoordinateCheck(PlainMonitor(*pair(Twice)))
    assert num_hooks() > before
    del check
    gc.collect()
    assert num_hooks() == before


def test_a_closed_check_says_that_it_is() -> None:
    module, reference = pair(Twice)
    monitor = PlainMonitor(module, reference)
    check = RefinedCoordinateCheck(monitor)
    check.close()
    monitor.begin_step(0)
    reference(torch.ones(2, 5))
    module(torch.ones(2, 5))
    with pytest.raises(ConfigError, match=r"this coordinate check was closed .* make another one"):
        check.refined_coordinate_check()


def test_a_monitor_without_a_reference_module_is_refused(tmp_path: Path) -> None:
    module = nn.Linear(4, 4)
    before = num_hooks()
    with (
        watch(module, run=tmp_path / "run") as monitor,
        pytest.raises(ConfigError, match=r"got Monitor; make a ModuleMonitor .* watch\(\) gives"),
    ):
        RefinedCoordinateCheck(monitor)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got NoneType"):
        RefinedCoordinateCheck(None)  # type: ignore[arg-type]
    assert num_hooks() == before


class Crossed(nn.Module):
    """Attention to something of another size and length, in any layout, with a mask."""

    def __init__(self, batch_first: bool, bias: bool) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(
            8, 2, kdim=6, vdim=5, batch_first=batch_first, bias=bias, dropout=0.5
        )

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        hidden = torch.zeros(x.shape[-2] if self.attn.batch_first else len(x), 4).bool()
        hidden[:, -1] = True
        return self.attn(query=x, value=values, key=keys, attn_mask=hidden)[0]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_projections_of_attention(batch_first: bool, bias: bool) -> None:
    module, reference = pair(lambda: Crossed(batch_first, bias))
    shapes = [(2, 3, 8), (2, 4, 6), (2, 4, 5)]
    given = [torch.randn(shape) for shape in shapes]
    given = given if batch_first else [x.transpose(0, 1).contiguous() for x in given]
    dice = torch.get_rng_state()
    found = checked(module.eval(), reference.eval(), *given)
    assert torch.equal(torch.get_rng_state(), dice)
    now, start = module.attn, reference.attn
    for name, x in zip("qkv", given, strict=True):
        wt, w0 = (getattr(one, f"{name}_proj_weight") for one in (now, start))
        key = f"{EFFECTIVE}/attn.{name}_proj.weight/l2norm"
        assert found[key] == pytest.approx(norm(x @ (wt - w0).T), rel=1e-4)
        assert found[f"{PROPAGATING}/attn.{name}_proj/l2norm"] == 0.0
        assert found[f"RCC x_t/attn.{name}_proj/l2norm"] == pytest.approx(norm(x))
    # What goes into out_proj, by undoing it.
    h, h0 = (
        (one(*given) - (one.attn.out_proj.bias if bias else 0.0)).double()
        @ torch.linalg.inv(one.attn.out_proj.weight.double()).T
        for one in (module, reference)
    )
    wt, w0 = now.out_proj.weight.double(), start.out_proj.weight.double()
    right = {
        f"{EFFECTIVE}/attn.out_proj.weight/l2norm": norm(h @ (wt - w0).T),
        f"{PROPAGATING}/attn.out_proj/l2norm": norm((h - h0) @ w0.T),
        "RCC x_t/attn.out_proj/l2norm": norm(h),
    }
    assert {key: found[key] for key in right} == pytest.approx(right, rel=1e-3)


def test_attention_with_a_forward_of_its_own_is_not_looked_into() -> None:
    class Own(nn.MultiheadAttention):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x, x, x)[0]

    found = checked(*pair(lambda: nn.Sequential(Own(4, 2))), torch.randn(3, 4))
    assert f"{EFFECTIVE}/0/l2norm" in found
    assert not any("_proj" in key for key in found)


def test_models_carry_no_trace() -> None:
    module, reference = pair(Twice)
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.begin_step(0)
        x = torch.randn(2, 5)
        reference(x)
        module(x)
        check.refined_coordinate_check()
        again = copy.deepcopy(module)
        saved = io.BytesIO()
        torch.save(module, saved)
        for model in (module, reference, again):
            for inner in model.modules():
                assert not inner._forward_hooks
                assert not inner._forward_pre_hooks
                assert set(vars(inner)) == set(vars(nn.Linear(1, 1))) - {
                    "in_features",
                    "out_features",
                } | ({"in_features", "out_features"} if isinstance(inner, nn.Linear) else set())
    saved.seek(0)
    assert torch.equal(torch.load(saved, weights_only=False)(x), module(x))


def test_training_is_bit_identical() -> None:
    def train(watched: bool) -> list[float]:
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.3),
            nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1)), nn.Linear(16, 1),
        )  # fmt: skip
        reference = copy.deepcopy(module).eval()
        monitor = PlainMonitor(module, reference)
        update = torch.optim.Adam(module.parameters(), lr=1e-2)
        losses = []
        check = RefinedCoordinateCheck(monitor) if watched else None
        for step in range(6):
            monitor.begin_step(step)
            x = torch.randn(8, 6)
            if check is not None:
                with torch.no_grad():
                    reference(x)
            loss = module(x).square().mean()
            update.zero_grad()
            loss.backward()
            if check is not None:
                check.refined_coordinate_check()
            update.step()
            monitor.end_step()
            losses.append(loss.item())
        if check is not None:
            check.close()
        return losses

    assert train(watched=True) == train(watched=False)


def test_terms_are_exact_under_autocast_too() -> None:
    module, reference = pair(lambda: nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), by=1e-4)
    x = torch.randn(4, 64)
    exact = checked(module, reference, x, also=("alignment",))
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor, also=("alignment",)) as check:
        monitor.begin_step(0)
        reference(x)
        module(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            check.refined_coordinate_check()
            assert torch.is_autocast_enabled("cpu")
    assert monitor.end_step() == pytest.approx(exact, rel=1e-12, nan_ok=True)


def test_reference_in_inference_mode() -> None:
    module, reference = pair(Twice)
    x = torch.randn(3, 5)
    monitor = PlainMonitor(module, reference)
    with RefinedCoordinateCheck(monitor) as check:
        for step in (0, 2):
            monitor.begin_step(step)
            with torch.inference_mode():
                reference(x)
            module(x)
            check.refined_coordinate_check()
            assert monitor.end_step() == checked(module, reference, x)


def test_compiled_models_stay_whole() -> None:
    """Nothing is seen inside, and nothing breaks the graph."""
    module, reference = pair(Twice)
    monitor = PlainMonitor(module, reference)
    x = torch.randn(3, 5)
    right = module(x)
    with RefinedCoordinateCheck(monitor) as check:
        module.compile(backend="eager", fullgraph=True)
        monitor.begin_step(0)
        assert torch.equal(module(x), right)
        reference(x)
        with pytest.raises(ValueError, match="module to monitor was not called"):
            check.refined_coordinate_check()


def test_autocast_is_the_calls_own() -> None:
    """A module that needs autocast to run at all: its input is bfloat16, its weights are not."""

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))

    module, reference = pair(make, by=0.2)
    module.eval()
    reference.eval()
    monitor = PlainMonitor(module, reference)
    x = torch.randn(4, 8)
    with RefinedCoordinateCheck(monitor) as check:
        monitor.begin_step(0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            reference(x)
            module(x)
        check.refined_coordinate_check()
        found = monitor.end_step()
    exact = checked(module, reference, x)
    key = f"{EFFECTIVE}/1/l2norm"
    assert found[key] == pytest.approx(exact[key], rel=0.02)
