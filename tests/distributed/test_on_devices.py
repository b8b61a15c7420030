"""Ranks whose measurements are on devices meet two monitored steps later, and wait for nothing.

There is no GPU here. Measurements lie on a device of the tests that is a step behind: whoever reads
what it has not copied yet fails. What of ours reads a tensor by other ways is listed.
"""

import numpy as np
import pytest

import torchvitals
from tests.distributed.situations import SPREAD
from tests.distributed.test_values import alone, compare
from tests.distributed.training import GROUPS, STEPS, on_device, train
from tests.monitor.rank_workers import run

WATCH = {"every": 1, "updates": "exact", "histograms": "full", "backend": "torch"}


@pytest.mark.parametrize("situation", SPREAD)
def test_nothing_is_read_on_the_training_thread(tmp_path, situation):
    training, way, world_size = SPREAD[situation]
    results = run(world_size, on_device, tmp_path, training, world_size, way, WATCH)
    losses, path = alone(training, way, tmp_path / "alone", WATCH)
    np.testing.assert_allclose(np.mean([r.losses for r in results], axis=0), losses, rtol=1e-5)
    steps = STEPS if training is train else len(GROUPS)
    for found in results:
        # The first two are exchanged in the third and fourth, the rest when the run is closed.
        assert found.collectives == [0, 0, 2, 2][:steps]
        assert found.warnings == []
        assert found.reads == []
        assert found.num_copies >= steps
    with torchvitals.open_run(tmp_path / "run") as spread, torchvitals.open_run(path) as whole:
        assert spread.steps("gradient").tolist() == list(range(1, steps + 1))
        compare(spread, whole)
