"""A run of several real processes: one writes, evaluations are exact, the slow one shows."""

import time

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import torchvitals
from torchvitals.record import StoreError

from .rank_workers import run
from .training import batches, loss_of, make_net

SLOW = 1


def shard(rank, world_size):
    """This rank's samples of an evaluation: uneven, the last rank has none."""
    values = np.random.default_rng(5).normal(size=101)
    if rank == world_size - 1:
        return values[:0]
    cuts = np.linspace(0, 101, world_size + 1).astype(int)
    cuts[world_size - 1] = 101
    return values[cuts[rank] : cuts[rank + 1]]


def training(rank, folder, world_size):
    model = DistributedDataParallel(make_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torchvitals.watch(
        model, optimizer, run=folder / "run", every=2, samples_every=3
    ) as monitor:
        for x in monitor.data(batches(8, seed=rank)):
            loss = loss_of(model, x)
            loss.backward()
            if rank == SLOW:
                time.sleep(0.05)
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)
            monitor.log_samples([float(rank), 1.0], category=["mine", f"of {rank}"])
        mine = shard(rank, world_size)
        for value in mine:
            monitor.log_samples([value], category="all", split="val")
        mean = float(mine.mean()) if len(mine) else 0.0
        monitor.log_eval("val", loss=mean, count=len(mine))
        if rank:
            with pytest.raises(StoreError, match=f"rank {rank}"):
                _ = monitor.history
    return monitor.step_number


@pytest.mark.parametrize("world_size", [2, 4])
def test_one_rank_writes_what_all_have(tmp_path, world_size):
    assert run(world_size, training, tmp_path, world_size) == [8] * world_size
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "finished"
        assert len(history.attempts) == 1
        everything = np.concatenate([shard(r, world_size) for r in range(world_size)])
        found = history.series("eval/val/loss").values[-1]
        assert found == pytest.approx(everything.mean(), rel=1e-6)
        assert history.series("category/val:all/loss").values[-1] == pytest.approx(
            everything.mean(), rel=1e-6
        )
        assert history.series("category/val:all/num_samples").values[-1] == 101
        mean = history.series("category/mine/loss").values
        np.testing.assert_allclose(mean, np.mean(range(world_size)), rtol=1e-6)
        # Every third step, and the two left at the end of the epoch.
        assert history.series("category/mine/num_samples").steps.tolist() == [3, 6, 8]
        assert history.keys("category", "^of ", "loss")[-1].site == f"of {world_size - 1}"
        # The others wait for the slow one inside the step: it is told by what is not waiting.
        assert {key.site for key in history.keys("rank")} == {str(r) for r in range(world_size)}
        assert history.series("rank/0/step_s").values[-1] > 0
        assert history.series(f"rank/{SLOW}/rss_bytes").values[-1] > 1e7


def failing(rank, folder):
    model = DistributedDataParallel(make_net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    begun = time.monotonic()
    try:
        with torchvitals.watch(model, optimizer, run=folder / "run", every=2) as monitor:
            monitor.log_samples([1.0], category="a")
            time.sleep(0.2 * (1 - rank))
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    return time.monotonic() - begun


def test_a_rank_that_fails_does_not_wait_for_the_others(tmp_path):
    assert max(run(2, failing, tmp_path)) < 15
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "failed"
