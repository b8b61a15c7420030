"""`monitor.log()`: whose step, means, tensors, what is refused."""

import math
from importlib import metadata

import numpy as np
import pytest
import torch

import torchvitals
from torchvitals.record import ConfigError

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
