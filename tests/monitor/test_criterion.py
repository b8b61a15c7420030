"""Loss functions: what they are given, seen however they were imported."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy  # taken before any watch()

import torchvitals
from torchvitals.probes import loss_calls

ORIGINALS = [vars(owner)[name] for owner, name in loss_calls._OPERATORS]


def now():
    return [vars(owner)[name] for owner, name in loss_calls._OPERATORS]


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert loss_calls._listeners == []
    assert now() == ORIGINALS


class Run:
    """A model of which only the parameters matter: losses are of tensors made here."""

    def __init__(self, tmp_path, **options):
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        options = {"every": 1, "run": tmp_path / "run", **options}
        self.monitor = torchvitals.watch(self.model, self.optimizer, **options)
        self.steps = 0

    def step(self, *losses):
        (sum(loss.sum() for loss in losses) + self.model.weight.sum()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1

    def of(self, name, step=None):
        row = self.monitor.history.row(step or self.steps)
        return {k.stat: v for k, v in row.items() if k[:2] == ("criterion", name)}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.monitor.close()


def logits(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(shape, generator=generator)).requires_grad_()


@pytest.mark.parametrize(
    "call",
    [F.cross_entropy, cross_entropy, nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")],
    ids=["module", "name", "class", "sum"],
)
def test_cross_entropy(tmp_path, call):
    x, y = logits(40, 5), torch.tensor([0, 1, 2, 3, 4] * 4 + [3] * 18 + [-100] * 2)
    with Run(tmp_path) as run:
        want = F.cross_entropy(x, y, reduction=getattr(call, "reduction", "mean"))
        run.step(want)
        loss = call(x, y)
        assert torch.equal(loss, want)
        run.step(loss)
        got = run.of("cross_entropy")
    logz = x.detach().double().logsumexp(1)
    assert got == pytest.approx(
        {
            "probability_frac": 0.0,
            "num_classes": 5,
            "batch_size": 40,
            "sum_reduction": float(getattr(call, "reduction", "") == "sum"),
            "logz_mean": float(logz.mean()),
            "logz_absmax": float(logz.abs().max()),
            "top_target_frac": 22 / 38,
            "num_targets": 5,
            "rare_target_frac": 4 / 38,
        },
        rel=1e-5,
    )


def test_probabilities_are_recognised(tmp_path):
    x = logits(64, 7)
    mixed = torch.cat([x[:48].softmax(1), x[48:]])
    with Run(tmp_path) as run:
        for inputs in (x.softmax(1), mixed, x.log_softmax(1)):
            run.step(F.cross_entropy(inputs, torch.zeros(64, dtype=torch.long)))
        shares = [run.of("cross_entropy", step)["probability_frac"] for step in (1, 2, 3)]
        assert shares == [1.0, 0.75, 0.0]
        assert run.of("cross_entropy", 3)["logz_absmax"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("shape", [(9,), (6, 9), (6, 9, 5), (2, 9, 30, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_of_logits(tmp_path, shape, dtype):
    x = logits(*shape).to(dtype)
    sizes = shape[:1] + shape[2:] if len(shape) > 1 else ()
    with Run(tmp_path) as run:
        run.step(F.cross_entropy(x, torch.full(sizes, 4)))
        got = run.of("cross_entropy")
    wide = x.detach().double()
    logz = wide.logsumexp(1 if len(shape) > 1 else 0)
    assert got["num_classes"] == 9
    assert got["batch_size"] == (shape[0] if len(shape) > 1 else 1)
    assert got["top_target_frac"] == 1.0
    if logz.numel() <= 256:
        assert got["logz_mean"] == pytest.approx(float(logz.mean()), rel=1e-5)
        assert got["logz_absmax"] == pytest.approx(float(logz.abs().max()), rel=1e-5)
    else:
        assert got["logz_mean"] == pytest.approx(float(logz.mean()), abs=0.5)


def test_many_classes_are_reduced_without_a_copy(tmp_path):
    x = logits(500, 3000)
    y = torch.randint(3000, (500,), generator=torch.Generator().manual_seed(2))
    with Run(tmp_path) as run:
        run.step(F.cross_entropy(x, y))
        run.step(F.cross_entropy(x.softmax(1), y))
        first, second = run.of("cross_entropy", 1), run.of("cross_entropy", 2)
    rows = x.detach()[::3].double()  # 167 of 500 rows: the most that fit 256 at an odd step
    assert first["logz_mean"] == pytest.approx(float(rows.logsumexp(1).mean()), rel=1e-5)
    assert (first["probability_frac"], second["probability_frac"]) == (0.0, 1.0)
    assert first["num_targets"] == len(y.unique())


def test_probabilities_as_targets_have_no_classes(tmp_path):
    with Run(tmp_path) as run:
        run.step(F.cross_entropy(logits(8, 3), torch.full((8, 3), 1 / 3)))
        got = run.of("cross_entropy")
    assert "logz_mean" in got
    assert "num_targets" not in got


def test_targets_are_counted_from_the_start(tmp_path):
    with Run(tmp_path) as run:
        for y in ([0] * 9 + [1], [0] * 10, [2] * 5 + [0] * 5):
            run.step(F.nll_loss(logits(10, 4).log_softmax(1), torch.tensor(y)))
        got = [run.of("nll_loss", step) for step in (1, 2, 3)]
    assert [g["top_target_frac"] for g in got] == pytest.approx([0.9, 1.0, 0.5])
    assert [g["num_targets"] for g in got] == [2, 2, 3]
    assert [g["rare_target_frac"] for g in got] == pytest.approx([0.1, 0.05, 1 / 30])
    assert [g["logz_mean"] for g in got] == pytest.approx([0, 0, 0], abs=1e-6)


def test_micro_batches_are_averaged(tmp_path):
    x, y = logits(30, 4), torch.tensor([0, 1, 2] * 10)
    with Run(tmp_path) as run:
        run.step(F.cross_entropy(x[:10], y[:10]), F.cross_entropy(x[10:].softmax(1), y[10:]))
        got = run.of("cross_entropy")
    logz = torch.cat([x[:10], x[10:].softmax(1)]).detach().double().logsumexp(1)
    assert got["batch_size"] == 15
    assert got["probability_frac"] == 0.5
    assert got["logz_absmax"] == pytest.approx(float(logz.abs().max()), rel=1e-5)
    assert got["rare_target_frac"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["binary_cross_entropy", "binary_cross_entropy_with_logits"])
def test_binary(tmp_path, name):
    x = logits(20, 1)
    inputs = x.sigmoid() if name == "binary_cross_entropy" else x
    y = torch.tensor([1.0] * 3 + [0.0] * 17)[:, None]
    with Run(tmp_path) as run:
        run.step(getattr(F, name)(inputs, y, reduction="sum"))
        got = run.of(name)
    share = float(((inputs >= 0) & (inputs <= 1)).double().mean())
    assert got == pytest.approx(
        {
            "probability_frac": share,
            "num_classes": 1,
            "batch_size": 20,
            "sum_reduction": 1.0,
            "top_target_frac": 0.85,
            "num_targets": 2,
            "rare_target_frac": 0.15,
        }
    )


@pytest.mark.parametrize("name", ["mse_loss", "l1_loss", "smooth_l1_loss"])
def test_regression(tmp_path, name):
    x, y = logits(8, 2), torch.tensor([[0.5, 3.0], [-2.0, 1.0]] * 4)
    with Run(tmp_path) as run:
        run.step(getattr(F, name)(x, y))
        assert run.of(name) == {
            "target_integer_frac": 0.75,
            "target_min": -2.0,
            "target_max": 3.0,
            "num_outputs": 2,
            "sum_reduction": 0.0,
            "broadcast": 0.0,
        }


def test_silent_broadcasting(tmp_path):
    x, y = logits(8, 1), torch.arange(8.0)
    with Run(tmp_path) as run:
        with pytest.warns(UserWarning, match="different to the input size"):
            run.step(F.mse_loss(x, y))
        run.step(F.mse_loss(x, y[:, None], reduction="sum"))
        # Expanded by the user on purpose: the shapes are the same.
        run.step(F.mse_loss(logits(8, 4), y[:, None].expand(8, 4)))
        got = [run.of("mse_loss", step) for step in (1, 2, 3)]
    assert [g["broadcast"] for g in got] == [1, 0, 0]
    assert [g["num_outputs"] for g in got] == [1, 1, 4]
    assert [g["sum_reduction"] for g in got] == [0, 1, 0]
    assert [g["target_integer_frac"] for g in got] == [1, 1, 1]


def test_a_smooth_l1_loss_without_a_bend_keeps_its_name(tmp_path):
    with Run(tmp_path) as run:
        run.step(F.smooth_l1_loss(logits(4, 2), torch.zeros(4, 2), beta=0.0))
        assert run.of("smooth_l1_loss")
        assert not run.of("l1_loss")


def test_what_is_not_trained_is_not_seen(tmp_path):
    x, y = logits(4, 3), torch.zeros(4, dtype=torch.long)
    with Run(tmp_path) as run:
        with torch.no_grad():
            F.cross_entropy(x, y)
        F.cross_entropy(x.detach(), y)
        torch._C._nn.cross_entropy_loss(x, y)  # not by the function
        run.step(x.sum())
        assert not run.monitor.history.keys("criterion")


def test_between_monitored_steps_functions_are_what_they_were(tmp_path):
    x, y = logits(4, 3), torch.zeros(4, dtype=torch.long)
    with Run(tmp_path, every=3) as run:
        for step in range(1, 7):
            assert (now() == ORIGINALS) == (step not in {1, 3, 6})
            run.step(F.cross_entropy(x, y))
        assert run.monitor.history.steps("criterion").tolist() == [1, 3, 6]
        with Run(tmp_path / "other") as other:  # two at once
            other.step(F.cross_entropy(x, y))
            assert other.of("cross_entropy")
        assert now() == ORIGINALS


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_functions_pickle_copy_trace_and_script_while_watched(tmp_path):
    class Model(nn.Module):
        def __init__(self, loss):
            super().__init__()
            self.loss, self.net = loss, nn.Linear(3, 3)

        def forward(self, x, y):
            return self.loss(self.net(x), y)

    x, y = torch.randn(4, 3), torch.zeros(4, 3)
    model = Model(F.mse_loss)
    want = model(x, y)

    def mse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(a, b)

    with Run(tmp_path) as run:
        assert now() != ORIGINALS
        assert pickle.loads(pickle.dumps(F.mse_loss)) is F.mse_loss
        assert copy.deepcopy(model).loss is F.mse_loss
        torch.save(nn.ModuleList([nn.MSELoss(), nn.CrossEntropyLoss()]), io.BytesIO())
        traced = torch.fx.symbolic_trace(model)
        assert F.mse_loss in {node.target for node in traced.graph.nodes}
        scripted = torch.jit.script(mse)
        jitted = torch.jit.trace(model, (x, y))
        run.step(want)
        assert not run.of("mse_loss")
    for again in (traced(x, y), scripted(model.net(x), y), jitted(x, y)):
        assert torch.equal(again, want)
    assert torch.equal(torch.jit.script(mse)(model.net(x), y), want)


def test_a_compiled_loss_is_compiled_at_most_once_more(tmp_path):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(backend=counter, fullgraph=True)
    def loss_of(x, y):
        return F.cross_entropy(x * 2, y)

    x, y = logits(6, 3), torch.zeros(6, dtype=torch.long)
    want = F.cross_entropy(x * 2, y)
    with Run(tmp_path, every=3) as run:
        for _ in range(9):
            loss = loss_of(x, y)
            assert torch.equal(loss, want)
            run.step(loss)
        assert not run.monitor.history.keys("criterion")
    assert counter.frame_count <= 2
    torch._dynamo.reset()


def test_a_failure_is_told_and_reaches_nobody(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHVITALS_STRICT", "0")

    def broken(_call):
        raise RuntimeError("planted")

    monkeypatch.setattr("torchvitals.probes.criterion._look", broken)
    x, y = logits(4, 3), torch.zeros(4, dtype=torch.long)
    with Run(tmp_path) as run:
        for _ in range(3):
            run.step(F.cross_entropy(x, y))
        (event,) = run.monitor.history.events("degraded")
        assert event.data == {"probe": "loss functions"}
    assert len([r for r in caplog.records if "planted" in r.getMessage()]) == 1
