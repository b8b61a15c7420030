"""Accumulation under DDP with `no_sync`: each statistic is that of one process, group by group."""

import numpy as np
import pytest

import torchvitals
from tests.distributed.test_values import compare
from tests.distributed.training import GROUPS, train_accumulated
from tests.monitor.rank_workers import run

WATCH = {"every": 1, "updates": "exact", "histograms": "full"}


@pytest.mark.parametrize("world_size", [2, 4])
def test_accumulated_groups_are_those_of_one_process(tmp_path, world_size):
    alone = train_accumulated(0, tmp_path / "alone", 1, None, WATCH).losses
    results = run(world_size, train_accumulated, tmp_path, world_size, "ddp", WATCH)
    np.testing.assert_allclose(np.mean([r.losses for r in results], axis=0), alone, rtol=1e-5)
    for found in results:
        assert found.collectives == [2] * len(GROUPS)
        assert found.warnings == []
    with (
        torchvitals.open_run(tmp_path / "run") as spread,
        torchvitals.open_run(tmp_path / "alone" / "run") as whole,
    ):
        assert spread.steps("gradient").tolist() == [1, 2, 3]
        compare(spread, whole)
