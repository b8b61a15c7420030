"""Real ranks over gloo: all decide the same, nothing hangs, weights stay equal."""

import math

import pytest

from tests.monitor.rank_workers import run

from . import rank_workers as workers
from .training import BAD, NAN


def equal(things):
    return all(thing == things[0] for thing in things)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("kind", [NAN, BAD])
def test_one_rank_alone_has_the_bad_batch(world_size, kind, tmp_path):
    found = run(world_size, workers.one_rank_has_a_bad_batch, tmp_path, kind)
    for one in found:
        assert one["skipped"] == [batch == 8 for batch in range(11)]
        assert one["same"], "the run is not the one that never saw the batch"
        # One exchange a step, of a handful of numbers: gradients are not reduced again.
        assert one["sizes"] == [5] * 11
    assert equal([one["weights"] for one in found])
    assert equal([one["norm"] for one in found])
    assert equal([one["culprits"] for one in found])


@pytest.mark.parametrize("world_size", [2, 4])
def test_one_rank_alone_has_a_bad_loss(world_size, tmp_path):
    found = run(world_size, workers.one_rank_has_a_bad_loss, tmp_path)
    assert all(skipped == [batch == 3 for batch in range(6)] for skipped, *_ in found)
    assert all(culprits == ["rank 1"] for _, culprits, _ in found)
    assert equal([weights for *_, weights in found])


def test_the_ranks_mean_loss_decides_on_a_rollback(tmp_path):
    found = run(2, workers.losses_differ, tmp_path)
    assert equal(found)
    (steps, note, _), _ = found
    assert 50 < steps[0] < 60
    assert "to the state of" in note


@pytest.mark.parametrize(
    ("shape", "rule"),
    [
        ((2,), "mean_std"),
        ((4,), "mean_std"),
        ((2, 2), "mean_std"),
        ((2,), "adagc"),
        ((2, 2), "adagc"),
    ],
)
def test_sharded_gradients_have_the_whole_models_norm(shape, rule, tmp_path):
    found = run(math.prod(shape), workers.sharded, tmp_path, shape, rule)
    assert equal([norms[:6] for norms, *_ in found])
    for norms, expected, skipped, clips in found:
        assert norms[:6] == pytest.approx(expected[:6], rel=1e-4)
        assert norms[7] == pytest.approx(expected[7], rel=1e-4)
        assert skipped == [batch == 6 for batch in range(8)]
        assert (clips[-1] > 0) == (rule == "adagc")


@pytest.mark.parametrize(
    ("way", "world_size"),
    [("tensor_parallel", 2), ("tensor_parallel", 4), ("fsdp2_and_tensor_parallel", 4)],
)
def test_split_layers_have_the_whole_models_norm(way, world_size, tmp_path):
    found = run(world_size, workers.split_layers, tmp_path, way, world_size)
    assert equal([norms for norms, *_ in found])
    for norms, expected, skipped in found:
        assert norms == pytest.approx(expected, rel=1e-4)
        assert skipped == [False, False, False, False, True, False]


def test_sharded_states_are_gone_back_to(tmp_path):
    found = run(2, workers.sharded_rollback, tmp_path)
    assert equal(found)
    batch, back, same_weights = found[0]
    assert (batch, same_weights) == (30, True)
    assert back >= 16


def test_a_rank_that_is_gone_does_not_take_the_guard_along(tmp_path):
    (norm, expected, skipped, texts), _ = run(2, workers.one_rank_goes, tmp_path)
    assert norm == pytest.approx(expected, rel=1e-5)
    assert skipped
    assert sum("rank 0 decides alone" in text for text in texts) == 1
