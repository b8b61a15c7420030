"""Every statistic of a run of several processes is that of one process with the same data."""

import numpy as np
import pytest

import torchvitals
from tests.distributed import training as t
from tests.distributed.training import STEPS, train, train_on_device
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
    """What one process finds, with and without the layer that is never used."""
    out = {}
    for way in (None, "unused"):
        folder = tmp_path_factory.mktemp("single")
        out[way] = (train_alone(folder, unused=way is not None), folder / "run")
    return out


def train_alone(folder, *, unused):
    original = t.Net
    try:
        if unused:
            t.Net = lambda **_: original(unused=True)
        return train(0, folder, 1, None, WATCH)[0]
    finally:
        t.Net = original


@pytest.mark.parametrize(("way", "world_size"), SITUATIONS)
def test_statistics_are_those_of_one_process(tmp_path, single, way, world_size):
    (alone, path) = single["unused" if way == "ddp_unused" else None]
    clipped = way not in {"tensor_parallel", "fsdp2_and_tensor_parallel"}
    if not clipped:
        alone, path = unclipped(tmp_path)
    results = run(world_size, train, tmp_path, world_size, way, WATCH)
    losses = np.mean([losses for losses, _, _, _ in results], axis=0)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)
    for _, collectives, warnings, _ in results:
        # Monitored steps are 1, 2 and 4; the others make none.
        assert collectives == [2, 2, 0, 2]
        assert warnings == []
    with torchvitals.open_run(tmp_path / "run") as spread, torchvitals.open_run(path) as whole:
        assert spread.steps("gradient").tolist() == [1, 2, STEPS]
        compare(spread, whole)


ON_DEVICES = [("ddp", 2), ("fsdp2", 2), ("fsdp2", 4), ("hsdp", 4), ("tensor_parallel", 2)]


@pytest.mark.parametrize(("way", "world_size"), ON_DEVICES)
def test_on_devices_ranks_meet_later_and_wait_for_nothing(tmp_path, way, world_size):
    """The device is a step behind: whoever reads what it has not done yet fails."""
    watch = {**WATCH, "every": 1, "backend": "torch"}
    if way == "tensor_parallel":
        alone, path = unclipped(tmp_path, watch)
    else:
        alone, path = train(0, tmp_path / "alone", 1, None, watch)[0], tmp_path / "alone" / "run"
    results = run(world_size, train_on_device, tmp_path, world_size, way, watch)
    losses = np.mean([losses for losses, *_ in results], axis=0)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)
    for _, collectives, warnings, _, num_copies in results:
        # Steps 1 and 2 are exchanged in 3 and 4, the others when the run is closed.
        assert collectives == [0, 0, 2, 2]
        assert warnings == []
        assert num_copies >= STEPS
    with torchvitals.open_run(tmp_path / "run") as spread, torchvitals.open_run(path) as whole:
        assert spread.steps("gradient").tolist() == [1, 2, 3, 4]
        compare(spread, whole)


def unclipped(folder, watch=WATCH):
    kept = t.nn.utils.clip_grad_norm_
    try:
        t.nn.utils.clip_grad_norm_ = lambda *_: None
        losses = train(0, folder / "alone", 1, None, watch)[0]
    finally:
        t.nn.utils.clip_grad_norm_ = kept
    return losses, folder / "alone" / "run"


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


@pytest.mark.parametrize(("way", "world_size"), [("ddp", 2), ("fsdp2", 2), ("tensor_parallel", 2)])
def test_training_is_the_same_with_and_without(tmp_path, way, world_size):
    with_it = run(world_size, train, tmp_path, world_size, way, {**WATCH, "updates": "sampled"})
    bare = tmp_path / "bare"
    bare.mkdir()
    without = run(world_size, train, bare, world_size, way, None)
    for rank in range(world_size):
        assert with_it[rank][0] == without[rank][0]
        assert with_it[rank][3] == without[rank][3], "hooks are left behind"
