"""Copies of a parameter that drift apart are noticed, with their rank and layer."""

import os
import signal
import time

import pytest
import torch

import torchvitals
from tests.distributed.training import WAYS, Heard, Net, batch_of
from tests.monitor.rank_workers import run
from torchvitals.diagnosis import diagnose
from torchvitals.monitor.replicas import Drift, checks, drifts
from torchvitals.stats.shards import local


def drifting(rank, folder, world_size, way, victim, name):
    """One rank's weight changes behind everybody's back after the second step."""
    heard = Heard()
    torch.manual_seed(0)
    model = WAYS[way](Net(), world_size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(
        model, optimizer, run=folder / "run", every=1, replicas_every=3, machine=False
    ) as monitor:
        for step in range(1, 5):
            x, y = batch_of(step, rank, world_size)
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2 and rank == victim:
                bits = local(monitor._replicas._parameters[name].detach()).view(torch.int32)
                bits.view(-1)[0] ^= 1 << 22
        on_demand = monitor.check_replicas()
    return on_demand, heard.texts


@pytest.mark.parametrize(("way", "world_size"), [("ddp", 4), ("hsdp", 4)])
def test_a_replica_that_drifted_is_named(tmp_path, way, world_size):
    results = run(world_size, drifting, tmp_path, world_size, way, 3, "blocks.1.up.weight")
    with torchvitals.open_run(tmp_path / "run") as history:
        event, *_ = history.events("replica_drift")
        drifted = [history.series(f"rank/{r}/num_drifted").values for r in range(world_size)]
        (found,) = [f for f in diagnose(history).findings if f.name == "replicas_differ"]
    assert found.severity == "error"
    assert found.sites[0] == "blocks.1.up.weight"
    assert "rank 3" in found.explanation
    # Compared at the first step and at the third; HSDP has two copies of a piece: ranks 1 and 3.
    assert event.step == 3
    assert event.data["rank"] == 3
    assert "blocks.1.up.weight" in event.data["parameters"]
    assert drifted[3][0] == 0
    assert drifted[3][1] >= 1
    assert [values[1] for values in drifted[:3]] == [0, 0, 0]
    for on_demand, _ in results:
        assert [d.rank for d in on_demand] == [3]
        assert "blocks.1.up.weight" in on_demand[0].parameters
    assert "rank 3: " in results[0][1][0]


def test_equal_copies_are_quiet():
    copies = [checks({"a": torch.arange(6.0), "b": torch.ones(3)}).read() for _ in range(3)]
    assert drifts(copies) == []
    copies[1]["a"] = ("", copies[1]["a"][1] + 1)
    assert drifts(copies) == [Drift(1, ("a",))]
    assert str(Drift(1, ("a", "b", "c", "d", "e"))) == "rank 1: a, b, c and 2 more"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int8])
def test_any_bit_changes_the_checksum(dtype):
    tensor = torch.ones(7, dtype=dtype)
    before = checks({"w": tensor}).read()["w"]
    tensor[3] = 2
    assert checks({"w": tensor}).read()["w"] != before


def dying(rank, folder, world_size):
    """Rank 1 is killed in the middle; the others' monitors must not hang."""
    heard = Heard()
    torch.manual_seed(0)
    model = Net()  # no DDP: only the monitor talks to the others
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = torchvitals.watch(model, optimizer, run=folder / "run", every=1, machine=False)
    for step in range(1, 7):
        x, y = batch_of(step, rank, world_size)
        (model(x) - y).square().mean().backward()
        if step == 3 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        optimizer.zero_grad()
    begun = time.monotonic()
    monitor.close()
    return time.monotonic() - begun < 25, heard.texts


def test_a_rank_that_dies_does_not_hang_the_monitor(tmp_path):
    first, gone, *_ = run(3, dying, tmp_path, 3)
    assert gone is None
    assert first[0]
    assert len(first[1]) == 1
    assert "Training goes on" in first[1][0]
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.steps("gradient").tolist() == [1, 2, 3, 4, 5, 6]
