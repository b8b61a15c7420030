"""Weights as matrices: twins and stable rank."""

import sqlite3

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.diagnosis import diagnose
from torchvitals.probes import weights
from torchvitals.probes.weights import twin_frac

from .training import batches, make_net, train


def test_units_that_began_alike_are_still_alike(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 8))
    nn.init.constant_(model[0].weight, 0.1)
    nn.init.zeros_(model[0].bias)
    nn.init.constant_(model[2].weight, 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        train(model, optimizer, batches(3))
        got = monitor.history.series("parameter/0.weight/twin_frac")
        # Its six units get the same gradient; those of the last layer, each its own target.
        assert (got.steps.tolist(), got.values.tolist()) == ([1], [1.0])
        assert monitor.history.series("parameter/2.weight/twin_frac").values.tolist() == [0.0]
        assert not monitor.history.keys("parameter", r"0\.bias", "twin_frac")


def test_share_of_twins():
    rows = torch.randn(10, 3, 5)
    assert twin_frac(rows) == 0.0
    rows[7], rows[3], rows[4] = rows[1], rows[1], rows[9]
    assert twin_frac(rows) == 0.5
    assert twin_frac(rows.bfloat16()) == 0.5


def exact_rank(w):
    sigma = np.linalg.svd(w.detach().double().numpy(), compute_uv=False)
    return float((sigma**2).sum() / sigma[0] ** 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_stable_rank(tmp_path, dtype):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)).to(dtype)
    with torch.no_grad():
        model[2].weight.copy_(torch.outer(torch.randn(8), torch.randn(64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        train(model, optimizer, [x.to(dtype) for x in batches(40)])
        for name in ("0.weight", "2.weight"):
            got = monitor.history.series(f"parameter/{name}/stable_rank")
            want = exact_rank(model.get_parameter(name).float())
            assert len(got.values) == 1  # once in the first steps
            assert want * 0.99 <= got.values[0] <= want * 1.15
        assert got.values[0] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("period", "again"), [(12, 12), (1, 10)])
def test_matrices_take_turns(tmp_path, monkeypatch, period, again):
    monkeypatch.setattr(weights, "SPACING", 2)
    monkeypatch.setattr(weights, "PERIOD", period)
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        train(model, optimizer, batches(23))
        keys = monitor.history.keys("parameter", stat="stable_rank")
        assert len(keys) == 5
        found = [monitor.history.series(key).steps.tolist() for key in keys]
    assert found == [list(range(first, 24, again)) for first in (1, 3, 5, 7, 9)]


@pytest.mark.parametrize(
    ("every", "first", "second"), [(1, 1, 21), (10, 1, 20), (7, 1, 21), (40, 1, 40)]
)
def test_turns_are_counted_in_steps(tmp_path, every, first, second):
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=every) as monitor:
        train(model, optimizer, batches(45))
        found = [
            monitor.history.series(f"parameter/{layer}.weight/stable_rank").steps.tolist()
            for layer in (0, 1)
        ]
    assert found == [[first], [second]]


def test_a_collapse_is_found_though_matrices_take_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "SPACING", 4)
    monkeypatch.setattr(weights, "PERIOD", 12)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, diagnose=False
    ) as monitor:
        train(model, optimizer, [torch.randn(8, 64) for _ in range(20)])
        with torch.no_grad():
            for layer in (model[0], model[2]):
                layer.weight.copy_(torch.outer(torch.randn(64), torch.randn(64)))
        train(model, optimizer, [torch.randn(8, 64) for _ in range(20)])
        found = {
            one.name: one
            for finding in diagnose(monitor.history).findings
            for one in (finding, *finding.symptoms)
        }
    assert found["rank_collapse"].sites == ("0.weight", "2.weight")
    assert 20 < found["rank_collapse"].first_step <= 32


def test_no_parameters_no_matrices(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, parameters=False
    ) as monitor:
        train(model, optimizer, batches(1))
        assert not monitor.history.keys("parameter")


def test_rows_have_one_layout_whatever_was_measured_when(tmp_path):
    """A column that joins later would give the whole row another layout in the file."""
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, machine=False, clocks=False
    ) as monitor:
        train(model, optimizer, [torch.randn(3, 4) for _ in range(12)])
        path = monitor.path
    with sqlite3.connect(path / "run.vitals") as file:
        wide = file.execute("SELECT count(*) FROM layouts WHERE form = 'values'").fetchone()[0]
    assert wide == 1
