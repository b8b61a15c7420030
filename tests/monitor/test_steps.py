"""A step is an optimizer step, however the loop is written."""

import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.record import Key

from .training import batches, loss_of, make_net, train


def steps_of(run, kind="gradient"):
    with torchvitals.open_run(run) as history:
        return history.steps(kind).tolist()


def test_first_step_and_every_nth(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=4):
        train(model, optimizer, batches(10))
    assert steps_of(tmp_path / "run") == [1, 4, 8]


@pytest.mark.parametrize("where", ["first", "last", "never"])
def test_zero_grad_may_stand_anywhere(tmp_path, where):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    norms = []
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for x in batches(3):
            if where == "first":
                optimizer.zero_grad()
            loss_of(model, x).backward()
            norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))
            optimizer.step()
            if where == "last":
                optimizer.zero_grad(set_to_none=False)
        got = monitor.history.series("gradient/[root module]/norm").values
    assert got == pytest.approx(norms, rel=1e-5)


def test_two_optimizers_make_rounds(tmp_path):
    """A GAN: each step is one round; the discriminator may step more often."""
    models = {"generator": nn.Linear(4, 4), "critic": nn.Linear(4, 1)}
    generator, critic = (torch.optim.SGD(m.parameters(), lr=0.1) for m in models.values())

    def backward():
        models["critic"](models["generator"](torch.randn(8, 4))).mean().backward()

    with torchvitals.watch(models, [generator, critic], run=tmp_path / "run", every=1) as monitor:
        for _ in range(2):  # steps 1 and 2: both
            backward()
            critic.step()
            generator.step()
        for _ in range(3):  # steps 3 to 5: the critic alone, then together
            backward()
            critic.step()
        generator.step()
        assert monitor.step_number == 5
        history = monitor.history
        assert history.series("update/critic.weight/norm").steps.tolist() == [1, 2, 3, 4, 5]
        assert history.series("update/generator.weight/norm").steps.tolist() == [1, 2, 5]
        assert history.series("optimizer/optimizer0.group0/lr").steps.tolist() == [1, 2, 5]
        names = [model.name for model in history.info.models]
        assert names == ["generator", "critic"]


def test_closures_are_seen_after_their_backward(tmp_path):
    model = make_net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    norms = []
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for x in batches(2):

            def closure(x=x):
                optimizer.zero_grad()
                loss = loss_of(model, x)
                loss.backward()
                grads = [p.grad for p in model.parameters()]
                norms.append(float(torch.nn.utils.get_total_norm(grads)))
                return loss

            optimizer.step(closure)
            last = norms[-1]
            step = monitor.step_number
            got = monitor.history.row(step)[Key("gradient", "[root module]", "norm")]
            assert got == pytest.approx(last, rel=1e-5)
        assert monitor.step_number == 2


class Twice(torch.optim.SGD):
    """An optimizer whose step() calls the wrapped one of its base class."""

    def step(self, closure=None):
        return super().step(closure)


def test_a_subclass_calling_super_counts_once(tmp_path):
    model = make_net()
    optimizer = Twice(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        train(model, optimizer, batches(3))
        assert monitor.step_number == 3
    assert steps_of(tmp_path / "run") == [1, 2, 3]


class Fragile(torch.optim.SGD):
    """Raises in the middle of its second step, as one does that runs out of memory."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        if self.calls == 2:
            raise MemoryError
        return super().step(closure)


def test_a_step_that_raised_does_not_end_the_watching(tmp_path):
    model = make_net()
    optimizer = Fragile(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        train(model, optimizer, batches(1))
        with pytest.raises(MemoryError):
            train(model, optimizer, batches(1))
        train(model, optimizer, batches(2))
        assert monitor.step_number == 3
    assert steps_of(tmp_path / "run") == [1, 2, 3]


def test_without_an_optimizer_steps_end_by_hand(tmp_path):
    model = make_net()
    with torchvitals.watch(model, run=tmp_path / "run", every=1) as monitor:
        for x in batches(2):
            model.zero_grad()
            loss_of(model, x).backward()
            norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
            monitor.step()
            row = monitor.history.row(monitor.step_number)
            assert row[Key("gradient", "[root module]", "norm")] == pytest.approx(norm, rel=1e-5)
            assert Key("parameter", "head.weight", "rms") in row
            assert Key("activation", "head", "rms") in row
            assert not any(key.kind in {"update", "optimizer"} for key in row)
    assert steps_of(tmp_path / "run") == [1, 2]


def test_parameters_without_gradient_are_not_measured(tmp_path):
    model = make_net()
    unused = nn.Linear(3, 3)
    model.unused = unused
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        train(model, optimizer, batches(1))
        row = monitor.history.row(1)
        assert Key("gradient", "unused.weight", "norm") not in row
        assert Key("parameter", "unused.weight", "norm") in row
        assert row[Key("update", "unused.weight", "norm")] == 0


def test_resuming_continues_the_step_axis(tmp_path):
    model = make_net()
    for last in (0, 5):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torchvitals.watch(
            model, optimizer, run=tmp_path / "run", every=1, resume=last > 0
        ) as monitor:
            assert monitor.step_number == last
            train(model, optimizer, batches(5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, resume=True, start_step=7
    ):
        train(model, optimizer, batches(1))
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.steps("gradient").tolist() == list(range(1, 9))
        assert len(history.attempts) == 3
        key = "gradient/[root module]/norm"
        assert len(history.series(key, attempt=history.attempts[1].id).steps) == 5


def test_grad_scaler_gradients_are_measured_unscaled(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        x = batches(1)[0]
        loss_of(model, x).backward()
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        optimizer.zero_grad()
        scaler.scale(loss_of(model, x)).backward()
        scaler.step(optimizer)
        scaler.update()
        got = monitor.history.row(1)[Key("gradient", "[root module]", "norm")]
    assert got == pytest.approx(norm, rel=1e-5)


def test_sparse_gradients(tmp_path):
    model = nn.Embedding(50, 8, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact"
    ) as monitor:
        model(torch.tensor([3, 3, 7])).square().sum().backward()
        dense = model.weight.grad.to_dense()
        optimizer.step()
        row = monitor.history.row(1)
        assert row[Key("gradient", "weight", "norm")] == pytest.approx(
            float(dense.norm()), rel=1e-5
        )
        assert row[Key("gradient", "weight", "zero_frac")] == pytest.approx(48 / 50)
        assert row[Key("update", "weight", "norm")] == pytest.approx(
            0.1 * float(dense.norm()), rel=1e-4
        )
