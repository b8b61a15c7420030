"""What goes into the model and comes out of it, and what an evaluation's mode was."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_internals
from torch.utils.checkpoint import checkpoint

import torchvitals
from torchvitals.probes.repeats import Seen, fingerprints
from torchvitals.probes.spread import sample, sample_rows, slices

from .training import batches, make_net

BACKENDS = ["native", "torch"]


class Two(nn.Module):
    """Called with a tensor and a keyword; gives a dict."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, x, *, context, scale=1.0):
        return {"loss": x.sum(), "logits": self.a(x) + scale * self.b(context["c"])}


def watched(tmp_path, model, **options):
    params = (
        [p for m in model.values() for p in m.parameters()]
        if isinstance(model, dict)
        else (model.parameters())
    )
    optimizer = torch.optim.SGD(params, lr=0.01)
    options = {"every": 1, "run": tmp_path / "run", **options}
    return torchvitals.watch(model, optimizer, **options), optimizer


def of(monitor, step, kind):
    row = monitor.history.row(step)
    return {f"{k.site}/{k.stat}": v for k, v in row.items() if k.kind == kind}


def check_input(got, name, x):
    finite = x[x.isfinite()].double()
    assert got[f"{name}/mean"] == pytest.approx(float(finite.mean()), rel=1e-5, abs=1e-6)
    assert got[f"{name}/std"] == pytest.approx(float(finite.std(unbiased=False)), rel=1e-5)
    assert got[f"{name}/min"] == pytest.approx(float(finite.min()))
    assert got[f"{name}/max"] == pytest.approx(float(finite.max()))
    assert got[f"{name}/num_nan"] == int(x.isnan().sum())
    assert got[f"{name}/num_inf"] == int(x.isinf().sum())
    assert got[f"{name}/zero_frac"] == pytest.approx(float((x == 0).float().mean()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_and_outputs_over_micro_batches(tmp_path, backend):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model, backend=backend)
    seen, outs = batches(3, seed=5), []
    seen[0][0, 0], seen[1][2, :3], seen[2][1, 1] = float("nan"), float("inf"), 0.0
    for x in seen:
        out = model(x)
        outs.append(out.detach())
        out.nan_to_num().square().mean().backward()
    optimizer.step()
    check_input(of(monitor, 1, "input"), "0", torch.cat(seen))
    got, out = of(monitor, 1, "output"), torch.cat(outs)
    finite = out[out.isfinite()].double()
    assert got["[root module]/mean"] == pytest.approx(float(finite.mean()), rel=1e-4)
    assert got["[root module]/std"] == pytest.approx(float(finite.std(unbiased=False)), rel=1e-4)
    monitor.close()


def test_batch_std_frac(tmp_path):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model)
    x = batches(1)[0]
    for inputs in (x, x[:1].expand(16, 8), x[:1]):
        out = model(inputs)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    whole = make_net()(x).detach().double()  # as it was before the first step
    want = whole.var(dim=0, unbiased=False).mean().sqrt() / whole.std(unbiased=False)
    assert of(monitor, 1, "output")["[root module]/batch_std_frac"] == pytest.approx(float(want))
    # The same input sixteen times: only rounding differs.
    assert of(monitor, 2, "output")["[root module]/batch_std_frac"] < 1e-6
    assert "[root module]/batch_std_frac" not in of(monitor, 3, "output")
    monitor.close()


def test_keywords_nested_inputs_and_dict_outputs(tmp_path):
    model = Two()
    monitor, optimizer = watched(tmp_path, model)
    x, c = torch.randn(6, 4), torch.randn(6, 5)
    out = model(x, context={"c": c, "ids": torch.arange(6)}, scale=2.0)
    (out["logits"].square().mean()).backward()
    optimizer.step()
    got = of(monitor, 1, "input")
    check_input(got, "0", x)
    check_input(got, "context[c]", c)
    assert {key.rpartition("/")[0] for key in got} == {"0", "context[c]", "batch"}
    logits = out["logits"].detach().double()
    assert of(monitor, 1, "output")["[root module]/mean"] == pytest.approx(float(logits.mean()))
    monitor.close()


def test_token_ids_have_no_moments_but_are_told_apart(tmp_path):
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 3))
    monitor, optimizer = watched(tmp_path, model)
    ids = torch.randint(50, (12, 7), generator=torch.Generator().manual_seed(0))
    for chosen in (ids[:8], ids[4:12]):
        model(chosen).square().mean().backward()
        optimizer.step()
    assert of(monitor, 1, "input") == {"batch/repeat_frac": 0.0}
    assert of(monitor, 2, "input") == {"batch/repeat_frac": 0.5}
    monitor.close()


def test_several_models_have_names(tmp_path):
    models = {"g": nn.Linear(2, 4), "c": nn.Linear(4, 1)}
    monitor, optimizer = watched(tmp_path, models)
    z = torch.randn(5, 2)
    fake = models["g"](z)
    models["c"](fake).mean().backward()
    optimizer.step()
    got = of(monitor, 1, "input")
    check_input(got, "g.0", z)
    check_input(got, "c.0", fake.detach())
    outputs = of(monitor, 1, "output")
    assert outputs["g/mean"] == pytest.approx(float(fake.detach().mean()), rel=1e-5)
    assert "c/std" in outputs
    monitor.close()


def test_only_calls_to_be_trained_count(tmp_path):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model)
    x = batches(1)[0]
    with torch.no_grad():
        model(x * 100)
    model.eval()
    model(x * 100)
    model.train()
    model(x).mean().backward()
    optimizer.step()
    check_input(of(monitor, 1, "input"), "0", x)
    monitor.close()


def test_checkpointing_counts_a_call_once(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    monitor, optimizer = watched(tmp_path, model)
    x = batches(1)[0].requires_grad_()
    checkpoint(model, x, use_reentrant=False).square().mean().backward()
    optimizer.step()
    assert of(monitor, 1, "input")["batch/repeat_frac"] == 0.0
    check_input(of(monitor, 1, "input"), "0", x.detach())
    monitor.close()


def test_large_outputs_are_sampled(tmp_path):
    model = nn.Linear(4, 5000)
    monitor, optimizer = watched(tmp_path, model, activations=False)
    x = torch.randn(600, 4, generator=torch.Generator().manual_seed(1))
    out = model(x)
    out.square().mean().backward()
    optimizer.step()
    got = of(monitor, 1, "output")
    assert got["[root module]/std"] == pytest.approx(float(out.detach().std()), rel=0.1)
    assert got["[root module]/mean"] == pytest.approx(float(out.detach().mean()), abs=0.1)
    monitor.close()


def test_a_wrapper_is_seen_through(tmp_path):
    inner = make_net()
    model = nn.DataParallel(inner)
    monitor, optimizer = watched(tmp_path, model)
    x = batches(2)
    model(x[0]).mean().backward()
    model.module(x[1]).mean().backward()
    optimizer.step()
    check_input(of(monitor, 1, "input"), "0", torch.cat(x))
    monitor.close()


def test_repeats_within_an_epoch_and_without(tmp_path):
    model = make_net()
    data = batches(4)
    order = [0, 1, 0, 2, 3]
    for epochs in (False, True):
        run = tmp_path / str(epochs)
        monitor, optimizer = watched(tmp_path, model, run=run)
        for turn in range(2):
            if epochs:
                monitor.epoch()
            for number in order if turn == 0 else [0, 1]:
                model(data[number]).mean().backward()
                optimizer.step()
        got = monitor.history.series("input/batch/repeat_frac").values.tolist()
        assert got == [0, 0, 1, 0, 0, *([0, 0] if epochs else [1, 1])]
        monitor.close()


def test_the_batch_after_a_monitored_step_is_remembered(tmp_path):
    """Workers of one seed give the same batch several times running."""
    model = make_net()
    monitor, optimizer = watched(tmp_path, model, every=4)
    data = batches(8)
    for number in [0, 0, 1, 1, 1, 2, 3, 3]:  # steps 1, 4 and 8 are monitored
        model(data[number]).mean().backward()
        optimizer.step()
    got = monitor.history.series("input/batch/repeat_frac")
    assert got.steps.tolist() == [1, 4, 8]
    # 4: its own batch, and the one of step 2, which step 1 had; 8: its own, and step 5's.
    assert got.values.tolist() == [0, 0.5, 0.5]
    monitor.close()


def test_the_same_batch_twice_in_a_step_is_no_repeat(tmp_path):
    model = make_net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    x = batches(1)[0]

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        optimizer.step(closure)
        assert of(monitor, 1, "input")["batch/repeat_frac"] == 0.0


def test_samples_differ_and_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("torchvitals.probes.repeats.WITHOUT_EPOCHS", 10)
    seen = Seen()
    x = torch.randn(8, 3, 40, 40)
    assert seen.repeat_frac(0, [fingerprints(x)]) == 0.0
    assert seen.repeat_frac(0, [fingerprints(x.to(memory_format=torch.channels_last))]) == 1.0
    seen.repeat_frac(0, [fingerprints(torch.randn(10, 5))])
    assert seen.repeat_frac(0, [fingerprints(x)]) == 0.0
    assert seen.repeat_frac(0, []) is None
    assert seen.repeat_frac(0, [fingerprints(torch.tensor([True, False, True]))]) == 1 / 3


@pytest.mark.parametrize("shape", [(7,), (300, 5), (2, 900), (3, 17, 40, 40), (100000,), ()])
def test_spread_samples_stay_within_their_limits(shape):
    x = torch.arange(int(np.prod(shape))).reshape(shape)
    found = sample(x, 64)
    assert 1 <= found.numel() <= 64
    assert found.flatten().tolist() == x[slices(shape, 64)].flatten().tolist()
    if shape:
        rows = sample_rows(x, 16, 8)
        assert len(rows) <= 16
        assert rows.numel() <= len(rows) * 8
        if x.numel() <= 64:
            assert torch.equal(sample(x, 64), x)


@pytest.mark.parametrize("every", [1, 7])
def test_the_mode_of_an_evaluation(tmp_path, every):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model, every=every)
    x = batches(1)[0]

    def evaluate(*, eval_mode):
        model.train(not eval_mode)
        with torch.no_grad():
            model(x)
        model.train()
        monitor.log_eval("val", loss=1.0)

    for step in range(1, 41):
        model(x).mean().backward()
        optimizer.step()
        if step % 10 == 0:  # seen at 20, because 21 is monitored, and then because it is regular
            evaluate(eval_mode=step != 30)
    monitor.log_eval("test", loss=1.0)  # nothing was evaluated here
    got = monitor.history.series("eval/val/train_mode")
    want = {10: 0.0, 20: 0.0, 30: 1.0, 40: 0.0}
    known = dict(zip(got.steps.tolist(), got.values.tolist(), strict=True))
    assert known == {
        step: want[step] for step in ([10, 20, 30, 40] if every == 1 else [20, 30, 40])
    }
    assert not monitor.history.keys("eval", "test", "train_mode")
    monitor.close()


def test_the_mode_of_an_evaluation_at_an_epochs_end(tmp_path):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model, every=100)
    for _ in range(2):
        for x in monitor.data(batches(5)):
            model(x).mean().backward()
            optimizer.step()
        with torch.inference_mode():
            model(x)
        monitor.log_eval(loss=1.0)
    got = monitor.history.series("eval/val/train_mode")
    assert (got.steps.tolist(), got.values.tolist()) == ([5, 10], [1.0, 1.0])
    monitor.close()


def global_hooks():
    return sum(len(t) for n, t in vars(module_internals).items() if n.endswith("_hooks"))


def test_nothing_is_left_between_calls_or_after_a_failure(tmp_path):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.error = make_net(), None

        def forward(self, x):
            if self.error is not None:
                raise self.error
            return self.net(x)

    model, before = Fails(), global_hooks()
    monitor, optimizer = watched(tmp_path, model, activations=False, clocks=False)
    x = batches(1)[0]
    model(x).mean().backward()
    assert not model._forward_hooks
    model.error = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        model(x)
    assert not model._forward_hooks
    assert not model._forward_hooks_with_kwargs
    assert not model._forward_hooks_always_called
    model.error = None
    model(x + 1).mean().backward()  # seen again
    model.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        model(x)
    model.error = None
    # An interrupt leaves the hook of the call behind: copies and pickles are none the worse.
    buffer = io.BytesIO()
    torch.save(copy.deepcopy(model.net), buffer)
    copied = copy.deepcopy(model)
    assert copied(x).shape == model.net(x).shape
    optimizer.step()
    check_input(of(monitor, 1, "input"), "0", torch.cat([x, x + 1]))
    monitor.close()
    assert not model._forward_hooks
    assert global_hooks() == before


def test_switched_off(tmp_path):
    model = make_net()
    monitor, optimizer = watched(tmp_path, model, inputs=False)
    nn.functional.mse_loss(model(batches(1)[0]), torch.zeros(16, 8)).backward()
    optimizer.step()
    kinds = {key.kind for key in monitor.history.keys()}
    assert not kinds & {"input", "output", "criterion"}
    monitor.close()


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_a_model_compiled_after_watch_is_left_alone(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    monitor, optimizer = watched(tmp_path, model)
    compiled = torch.compile(model, backend="eager")
    for x in batches(3):
        compiled(x).mean().backward()
        optimizer.step()
    assert not monitor.history.keys("input", "^0$")
    assert monitor.history.steps("gradient").tolist() == [1, 2, 3]
    monitor.close()
