"""Several processes train the same with and without the monitor, and carry nothing afterwards."""

import pytest

from tests.distributed.situations import SPREAD
from tests.monitor.rank_workers import run

WATCH = {"every": 2, "histograms": "full"}


@pytest.mark.parametrize("situation", SPREAD)
def test_losses_are_bit_identical_and_no_hook_stays(tmp_path, situation):
    train, way, world_size = SPREAD[situation]
    watched = run(world_size, train, tmp_path, world_size, way, WATCH)
    bare = tmp_path / "bare"
    bare.mkdir()
    without = run(world_size, train, bare, world_size, way, None)
    for rank in range(world_size):
        assert watched[rank].losses == without[rank].losses
        assert watched[rank].hooks == without[rank].hooks, "hooks are left behind"
