"""Every statistic of a run of several processes is that of one process with the same data."""

import numpy as np
import pytest

import torchvitals
from tests.distributed.training import STEPS, UNCLIPPED, train
from tests.monitor.rank_workers import run

WATCH = {"every": 2, "updates": "exact", "histograms": "full"}
SITUATIONS = [
    ("ddp", 2),
    ("ddp", 4),
    ("ddp_unused", 2),
    ("fsdp2", 2),
    ("fsdp2", 4),
    ("hsdp", 4),
    ("tensor_parallel", 2),
    ("tensor_parallel", 4),
    ("fsdp2_and_tensor_parallel", 4),
]
KINDS = ("gradient", "parameter", "update", "activation")
SAMPLED = {"g2_over_v_rms", "sqrt_v_over_eps", "twin_frac", "stable_rank"}
"""Statistics of a sample (another sample, another value), or of whole weights only."""


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """What one process finds."""
    known = {}

    def find(way):
        like = way if way in UNCLIPPED else "unused" if way == "ddp_unused" else None
        if like not in known:
            known[like] = alone(train, way, tmp_path_factory.mktemp("single"), WATCH)
        return known[like]

    return find


def alone(training, way, folder, watch):
    """Losses and run of one process with the same model and data."""
    like = "unclipped" if way in UNCLIPPED else "unused" if way == "ddp_unused" else None
    return training(0, folder, 1, like, watch).losses, folder / "run"


@pytest.mark.parametrize(("way", "world_size"), SITUATIONS)
def test_statistics_are_those_of_one_process(tmp_path, single, way, world_size):
    losses, path = single(way)
    results = run(world_size, train, tmp_path, world_size, way, WATCH)
    np.testing.assert_allclose(np.mean([r.losses for r in results], axis=0), losses, rtol=1e-5)
    for found in results:
        # Monitored steps are 1, 2 and 4; the others make none.
        assert found.collectives == [2, 2, 0, 2]
        assert found.warnings == []
    with torchvitals.open_run(tmp_path / "run") as spread, torchvitals.open_run(path) as whole:
        assert spread.steps("gradient").tolist() == [1, 2, STEPS]
        compare(spread, whole)


def compare(spread, whole):
    for kind in KINDS:
        keys = [key for key in whole.keys(kind) if key.stat not in SAMPLED]
        assert {k for k in spread.keys(kind) if k.stat not in SAMPLED} == set(keys)
        for key in keys:
            found, wanted = spread.series(key), whole.series(key)
            assert found.steps.tolist() == wanted.steps.tolist(), key
            np.testing.assert_allclose(
                found.values, wanted.values, rtol=2e-3, atol=1e-6, err_msg=str(key)
            )
    assert set(spread.histogram_sites()) == set(whole.histogram_sites())
    for kind, site in whole.histogram_sites():
        found, wanted = (h.histograms(site, kind).counts.sum(axis=0) for h in (spread, whole))
        # A value on the edge of a bin may fall to its other side: rounding differs.
        assert found.sum() == wanted.sum(), (kind, site)
        moved = np.abs(found.astype(int) - wanted.astype(int)).sum() / 2
        assert moved <= max(1, 0.02 * wanted.sum()), (kind, site)
