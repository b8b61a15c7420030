"""Ranks whose measurements are on devices meet two monitored steps later, and wait for nothing.

There is no GPU here. Measurements lie on a device of the tests that is a step behind: whoever reads
what it has not copied yet fails. What of ours reads a tensor by other ways is listed.
"""

import numpy as np
import pytest

import torchvitals
from tests.distributed.situations import SPREAD
from tests.distributed.test_values import alone, compare
from tests.distributed.training import (
    GROUPS,
    STEPS,
    Behind,
    batch_of,
    on_device,
    start,
    train,
)
from tests.monitor.rank_workers import run
from torchvitals.monitor import device_clock

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


def fail(rank, folder, world_size, way):
    """All ranks leave in the middle: nobody may wait for the others any more."""
    device = Behind()
    device_clock.this_clock = lambda: device
    model, optimizer, monitor = start(folder, world_size, way, WATCH)
    with device:
        for step in range(1, STEPS + 1):
            x, y = batch_of(step, rank, world_size)
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            device.end_step()
    monitor.close("failed")


@pytest.mark.parametrize(("way", "steps"), [("ddp", [1, 2, 3, 4]), ("fsdp2", [1, 2])])
def test_where_a_training_fails_the_writer_stores_what_it_can_tell_alone(tmp_path, way, steps):
    run(2, fail, tmp_path, 2, way)
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "failed"
        assert history.steps("activation").tolist() == [1, 2, 3, 4]
        # A part of a sharded gradient is not the whole.
        assert history.series("gradient/first.weight/norm").steps.tolist() == steps
