"""`monitor.log()`: whose step, means, tensors, what is refused."""

import math
from importlib import metadata

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.monitor.scalars import ScalarBook
from torchvitals.record import ConfigError, Key

from .training import batches, loss_of, make_net


def loop(tmp_path, where, num=5, every=2):
    """Log the number of the step before or after the optimizer's step."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=every) as monitor:
        for number, x in enumerate(batches(num), start=1):
            loss_of(model, x).backward()
            if where == "before":
                monitor.log(number=number)
            optimizer.step()
            optimizer.zero_grad()
            if where == "after":
                monitor.log(number=number)
    with torchvitals.open_run(tmp_path / "run") as history:
        return history.series("number")


@pytest.mark.parametrize("where", ["before", "after"])
def test_log_may_stand_before_or_after_the_step(tmp_path, where):
    steps, values = loop(tmp_path, where)
    assert steps.tolist() == values.tolist() == [1, 2, 3, 4, 5]


def logged(tmp_path, body, num=6, **options):
    """What `body(monitor, number, train)` logs before the loop (number 0) and in each round."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", **options) as monitor:
        body(monitor, 0, lambda say: None)
        for number, x in enumerate(batches(num), start=1):

            def train(say, x=x):
                loss = loss_of(model, x)
                say("passed", loss)
                loss.backward()
                say("backward", loss)
                optimizer.step()
                optimizer.zero_grad()
                say("stepped", loss)

            body(monitor, number, train)
    history = torchvitals.open_run(tmp_path / "run")
    assert history.last_step == num
    return history


@pytest.mark.parametrize("options", [{}, {"every": 1}, {"inputs": False}, {"gradients": False}])
@pytest.mark.parametrize("place", ["passed", "backward", "stepped"])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_what_is_logged_before_the_loop_shifts_nothing(tmp_path, place, as_tensor, options):
    def body(monitor, number, train):
        if number == 0:
            monitor.log(val_loss=9.0)

        def say(where, loss):
            if where == place:
                monitor.log(number=number + (0 * loss if as_tensor else 0.0))

        train(say)

    with logged(tmp_path, body, **options) as history:
        steps, values = history.series("number")
        assert steps.tolist() == values.tolist() == [1, 2, 3, 4, 5, 6]
        assert history.series("val_loss").steps.tolist() == [1]


@pytest.mark.parametrize("every", [1, 10])
def test_each_name_is_of_the_step_it_was_logged_in(tmp_path, every):
    def body(monitor, number, train):
        def say(where, loss):
            if where == "backward":
                monitor.log(norm=number)
            if where == "stepped":
                monitor.log({"after": number})
                if number > 3:
                    monitor.log(late=number)

        train(say)
        if number % 3 == 0:  # before the loop, and after steps 3 and 6
            monitor.log(evaluated=number)

    with logged(tmp_path, body, every=every) as history:
        for name in ("norm", "after"):
            steps, values = history.series(name)
            assert steps.tolist() == values.tolist() == [1, 2, 3, 4, 5, 6], name
        assert history.series("late").steps.tolist() == [4, 5, 6]
        steps, values = history.series("evaluated")
        assert (steps.tolist(), values.tolist()) == ([1, 3, 6], [0, 3, 6])


def test_a_name_that_is_logged_before_the_loop_and_in_it(tmp_path):
    def body(monitor, number, train):
        train(lambda where, loss: None)
        monitor.log(number=number)

    with logged(tmp_path, body) as history:
        steps, values = history.series("number")
        assert steps.tolist() == [1, 2, 3, 4, 5, 6]
        assert values.tolist() == [0.5, 2, 3, 4, 5, 6]  # what comes before is of the first step


def test_before_each_step_names_may_join_late(tmp_path):
    def body(monitor, number, train):
        def say(where, loss):
            if where == "passed" and number:
                monitor.log(loss=loss)
                if number > 2:
                    monitor.log(number=number)

        train(say)

    with logged(tmp_path, body) as history:
        assert history.series("loss").steps.tolist() == [1, 2, 3, 4, 5, 6]
        steps, values = history.series("number")
        assert steps.tolist() == values.tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize("position", ["before", "after"])
def test_without_calls_of_the_model_the_first_one_decides(tmp_path, position):
    with torchvitals.watch(make_net(), run=tmp_path / "run") as monitor:
        for number in range(1, 5):
            if position == "before":
                monitor.log(number=number)
            monitor.step()
            if position == "after":
                monitor.log(number=number)
        steps, values = monitor.history.series("number")
    assert steps.tolist() == values.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("place", ["before", "between", "after"])
@pytest.mark.parametrize("critics", [1, 5])
def test_rounds_of_a_gan(tmp_path, place, critics):
    """The critic steps in each round, the generator in every fifth: no round is lost."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 2), nn.Linear(2, 1)
    first = torch.optim.Adam(critic.parameters())
    second = torch.optim.Adam(generator.parameters())
    models = {"generator": generator, "critic": critic}
    with torchvitals.watch(models, [second, first], run=tmp_path / "run", every=1) as monitor:
        monitor.log(val_loss=1.0)
        for number in range(1, 11):
            first.zero_grad()
            critic(generator(torch.randn(4, 3)).detach()).mean().backward()
            if place == "before":
                monitor.log(number=number)
            first.step()
            if place == "between":
                monitor.log(number=number)
            if number % critics == 0:
                second.zero_grad()
                critic(generator(torch.randn(4, 3))).mean().backward()
                second.step()
            if place == "after":
                monitor.log(number=number)
    with torchvitals.open_run(tmp_path / "run") as history:
        steps, values = history.series("number")
        assert steps.tolist() == values.tolist() == list(range(1, 11))
        assert history.last_step == 10


def test_values_of_one_step_become_their_mean(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run") as monitor:
        for x in batches(3):
            for part, value in enumerate((1.0, 2.0, 6.0)):
                (loss_of(model, x) / 3).backward()
                monitor.log(loss=value, part=part)
            optimizer.step()
        assert monitor.history.series("loss").values.tolist() == [3.0] * 3
        assert monitor.history.series("part").values.tolist() == [1.0] * 3


def test_numbers_and_tensors_nan_and_inf(tmp_path):
    model = make_net()
    with torchvitals.watch(model, run=tmp_path / "run") as monitor:
        tensor = torch.tensor([2.5], requires_grad=True)
        monitor.log(a=1, b=np.float64(0.5), c=tensor, d=True, e=torch.tensor(7), f=math.nan)
        monitor.log(g=math.inf, h=-math.inf, i=1e300)
        monitor.step()
        row = {str(k): v for k, v in monitor.history.row(1).items() if k.kind == "scalar"}
    assert [row[k] for k in "abcde"] == [1.0, 0.5, 2.5, 1.0, 7.0]
    assert math.isnan(row["f"])
    assert (row["g"], row["h"], row["i"]) == (math.inf, -math.inf, math.inf)


def test_one_dict_of_numbers(tmp_path):
    with torchvitals.watch(make_net(), run=tmp_path / "run") as monitor:
        monitor.log({"train/loss": 1.0, "acc": 0.5}, lr=0.25)
        monitor.log({"train/loss": 3.0}, step=7)
        monitor.log({})
        history = monitor.history
        assert history.series("train/loss").steps.tolist() == [1, 7]
        assert history.series("lr").values.tolist() == [0.25]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3.0,), "log.. takes numbers by name or one dict of them, got float; for instance log"),
        (({"loss": 1}, 5), "takes numbers by name or one dict of them, got dict, int"),
        (({1: 2.0},), "log.. takes a dict of names to numbers, got 1 as a name"),
        (({"acc": 1},), "log.. was given 'acc' twice"),
    ],
)
def test_anything_else_by_position_is_refused(tmp_path, given, message):
    with (
        torchvitals.watch(make_net(), run=tmp_path / "run") as monitor,
        pytest.raises(ConfigError, match=message),
    ):
        monitor.log(*given, acc=0.5)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (5.5, "step must be a whole number, got 5.5"),
        (-3, "step must be at least 0, got -3"),
        (True, "step must be a whole number, got True"),
    ],
)
def test_a_wrong_step_is_refused(tmp_path, step, message):
    with (
        torchvitals.watch(make_net(), run=tmp_path / "run") as monitor,
        pytest.raises(ConfigError, match=message),
    ):
        monitor.log(step=step, x=1.0)


def test_numbers_too_large_for_a_float_are_infinite(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", guard="warn") as monitor:
        for x in batches(2):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.log(loss=10**400, x=-(10**400))
        assert monitor.history.series("loss").values.tolist() == [math.inf]
        assert monitor.history.series("x").values.tolist() == [-math.inf]


@pytest.mark.parametrize("guard", [None, "warn"])
def test_a_value_that_is_not_there_is_left_out_alone(tmp_path, caplog, guard):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", guard=guard) as monitor:
        for number, x in enumerate(batches(6), start=1):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            loss = torch.ones((), device="meta" if number in (2, 4) else "cpu")
            monitor.log(loss=loss, number=number)
        assert monitor.history.series("loss").steps.tolist() == [1, 3, 5, 6]
        assert monitor.history.series("number").steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert caplog.text.count("a value logged as loss is on the meta device") == 1
    assert "switched off" not in caplog.text


def test_a_value_that_cannot_be_read_is_left_out_alone(caplog):
    class Broken:
        def __float__(self):
            raise RuntimeError("gone")

    book = ScalarBook()
    for step in (1, 2):
        book.add(step, 0.0, {Key.scalar("a"): Broken(), Key.scalar("b"): step})
    rows = book.rows()
    assert [(row.step, row.header, row.values.tolist()) for row in rows] == [
        (1, (Key.scalar("b"),), [1.0]),
        (2, (Key.scalar("b"),), [2.0]),
    ]
    assert caplog.text.count("a value logged as a can't be read (RuntimeError: gone)") == 1


def test_a_tensor_changed_after_logging_was_already_taken(tmp_path):
    with torchvitals.watch(make_net(), run=tmp_path / "run") as monitor:
        total = torch.zeros(())
        total += 1
        monitor.log(total=total)
        total += 100
        monitor.step()
        assert monitor.history.series("total").values.tolist() == [1.0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(3), r"log\(x=…\) takes one number, got a tensor of shape \(3,\)"),
        ("high", r"log\(x=…\) takes a number or a one-element tensor, got str"),
        (None, r"got NoneType"),
        (torch.ones(1) * 1j, r"log\(x=…\) takes a number or a one-element tensor, got a complex"),
    ],
)
def test_what_is_not_a_number_is_refused_by_name(tmp_path, value, message):
    with (
        torchvitals.watch(make_net(), run=tmp_path / "run") as monitor,
        pytest.raises(ConfigError, match=message),
    ):
        monitor.log(x=value)


def test_step_can_be_given_and_names_may_join_later(tmp_path):
    with torchvitals.watch(make_net(), run=tmp_path / "run") as monitor:
        monitor.log(step=10, loss=1.0)
        monitor.log(step=20, loss=2.0, accuracy=0.5)
        history = monitor.history
        assert history.series("loss").steps.tolist() == [10, 20]
        assert history.series("accuracy").steps.tolist() == [20]


def test_history_reads_while_running_and_closed_monitors_stay_quiet(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1)
    for number, x in enumerate(batches(3), start=1):
        loss_of(model, x).backward()
        optimizer.step()
        monitor.log(loss=number)
        assert monitor.history.last_step == number
        assert monitor.history.status == "running"
    monitor.event("checkpoint", "saved to disk", path="a.pt")
    assert monitor.history.events("checkpoint")[0].data == {"path": "a.pt"}
    monitor.close()
    monitor.log(loss=99)
    monitor.event("late", "nobody hears this")
    optimizer.step()
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.series("loss").values.tolist() == [1, 2, 3]
        assert history.status == "finished"
        assert not history.events("late")


@pytest.mark.parametrize("logs", [True, False])
def test_iterations_that_never_became_steps_are_told_of(tmp_path, caplog, logs):
    model = make_net()
    with torchvitals.watch(model, run=tmp_path / "run") as monitor:
        for x in batches(3):
            loss = loss_of(model, x)
            loss.backward()
            model.zero_grad()
            if logs:
                monitor.log(loss=loss)
    assert caplog.text.count("no step ever ended") == 1
    assert "call monitor.step() at the end of each iteration" in caplog.text
    with torchvitals.open_run(tmp_path / "run") as history:
        (event,) = history.events("not_seen")
        assert "no step ever ended" in event.text


def test_a_run_without_iterations_is_not_told_of_steps(tmp_path, caplog):
    model = make_net()
    with torchvitals.watch(model, run=tmp_path / "nothing") as monitor:
        monitor.log(loss=1.0)
    with torchvitals.watch(model, run=tmp_path / "steps") as monitor:
        for x in batches(3):
            loss_of(model, x).backward()
            monitor.step()
            monitor.log(loss=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "optimizer") as monitor:
        monitor.log(loss=1.0)
        monitor.log(loss=1.0)
    failed = torchvitals.watch(model, run=tmp_path / "failed")
    loss_of(model, x)
    failed.close("failed")
    assert "no step ever ended" not in caplog.text


def test_run_information_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    with torchvitals.watch(model, optimizer, config={"lr": 0.125, "path": tmp_path}) as monitor:
        info = monitor.history.info
        assert monitor.path.parent.name == "runs"
        assert monitor.path.name.endswith("-net")
    assert info.config == {"lr": 0.125, "path": str(tmp_path)}
    assert info.packages == {
        package.metadata["Name"]: package.version for package in metadata.distributions()
    }
    assert info.device["threads"] == torch.get_num_threads()
    assert info.groups[0].options["lr"] == 0.125
    assert info.groups[0].optimizer == "AdamW"
    assert info.command
    modules = {m.name: (m.type, m.depth) for m in info.models[0].modules}
    assert modules["[root module]"] == ("Net", 0)
    assert modules["blocks.0.0"] == ("Linear", 3)
    shapes = {p.name: p.shape for p in info.models[0].parameters}
    assert shapes["blocks.0.0.weight"] == (16, 8)
    assert info.watch["every"] == 10
