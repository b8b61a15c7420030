"""Several processes: sums over ranks equal the unsharded data's, and a lost rank hangs nobody."""

import math

import numpy as np
import pytest
from torch import distributed as dist

from torchvitals.monitor.categories import CategoryBook, CategorySums
from torchvitals.monitor.ranks import Gathered, Ranks, Total
from torchvitals.record import ConfigError

from . import rank_workers as workers

SEEDS = range(20)


def reference(seed, world_size):
    """label → (Σ w, Σ w·l, samples, not finite) of the unsharded data, in plain float64."""
    losses, labels, weight, _ = workers.data(seed, world_size)
    losses = losses.astype(np.float64)
    sums = {}
    for label in np.unique(labels):
        own = labels == label
        name = f"label {label}" if seed % 2 else str(label)
        weighted = math.fsum(weight[own] * losses[own])
        sums[name] = (math.fsum(weight[own]), weighted, own.sum(), 0)
    return sums, Total(math.fsum(losses), len(losses))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_sums_over_ranks_equal_those_of_the_unsharded_data(tmp_path, world_size):
    shares = workers.run(world_size, workers.sums_of_shards, tmp_path, SEEDS)
    assert [writes for writes, _ in shares] == [True] + [False] * (world_size - 1)
    for rank, (_, results) in enumerate(shares):
        for seed, (by_label, scalars, numbers) in zip(SEEDS, results, strict=True):
            sums, total = reference(seed, world_size)
            assert (by_label is None) == (rank != 0)
            if by_label is not None:
                check_categories(by_label, sums)
            assert scalars.complete
            assert scalars.value["loss"].num == total.num
            assert scalars.value["loss"].mean == pytest.approx(total.mean, rel=1e-12)
            alone = {name: scalars.value[name] for name in scalars.value if name != "loss"}
            assert alone == {f"only {r}": (r, 1) for r in range(world_size)}
            assert numbers.complete
            assert [each["rank"] for each in numbers.value] == list(range(world_size))
            memory = [each["memory"] for each in numbers.value]
            assert math.isnan(memory[0])
            assert memory[1:] == [math.inf] * (world_size - 1)


def check_categories(by_label, sums):
    assert by_label.complete
    got = by_label.value.as_dict()
    assert got.keys() == sums.keys()
    np.testing.assert_allclose([got[k] for k in sums], list(sums.values()), rtol=1e-12)
    means = dict(zip(by_label.value.labels, by_label.value.means, strict=True))
    for name, (weight, weighted, *_) in sums.items():
        expected = weighted / weight if weight else math.nan
        assert means[name] == pytest.approx(expected, rel=1e-12, nan_ok=True)


def test_the_shards_are_as_uneven_as_they_claim():
    for world_size in (2, 3, 4):
        for seed in SEEDS:
            _, labels, _, ranks = workers.data(seed, world_size)
            held = [set(labels[ranks == rank]) for rank in range(world_size)]
            assert any(a != b for a in held for b in held)
            if seed % 3 == 0:
                assert set() in held
    shared = [np.bincount(workers.data(seed, 2)[3], minlength=2).min() for seed in SEEDS]
    assert np.median(shared) > 10


def test_a_killed_rank_holds_nobody_up(tmp_path):
    first, second, killed = workers.run(3, workers.one_is_killed, tmp_path, 2)
    assert killed is None
    for rank, (sums, held_up_s, again, again_s, told) in enumerate((first, second)):
        assert held_up_s < 15
        assert again_s < 1
        if rank == 0:
            assert not sums.complete
            assert sums.value.as_dict() == {"0": (1, 1, 1, 0), "all": (1, 2, 1, 0)}
        else:
            assert sums is None
        assert again == [
            Gathered([{"rank": rank}], complete=False),
            Gathered({"loss": Total(rank, 1)}, complete=False),
        ]
        assert len(told) == 1
        assert "the ranks can exchange no more numbers" in told[0]


def test_a_silent_rank_is_given_up_after_the_timeout(tmp_path):
    for rank, (numbers, held_up_s, told) in enumerate(
        workers.run(2, workers.one_is_silent, tmp_path)
    ):
        assert numbers == Gathered([{"rank": rank}], complete=False)
        assert held_up_s < 10
        assert len(told) == 1


def test_a_rank_that_never_joins_is_told_and_the_others_go_on(tmp_path):
    (numbers, held_up_s, rank, is_writer, told), gone = workers.run(
        2, workers.one_never_joins, tmp_path
    )
    assert gone is None
    assert numbers == Gathered([{"rank": 0}], complete=False)
    assert held_up_s < 20
    assert (rank, is_writer) == (0, True)
    assert len(told) == 1
    assert "the ranks could not meet" in told[0]


def test_ranks_out_of_step_and_a_training_already_shut_down_are_told(tmp_path):
    for rank, (mixed, after, told) in enumerate(workers.run(2, workers.out_of_step, tmp_path)):
        own = [{"rank": 1}] if rank else {"loss": Total(1.0, 2)}
        assert mixed == Gathered(own, complete=False)
        assert after == Gathered([{"rank": rank}], complete=False)
        assert "ranks exchange different things at the same time" in told[0]
        assert "close the monitor first" in told[1]
        assert len(told) == 2


@pytest.mark.parametrize("available", [True, False])
def test_one_process_needs_no_torch_distributed(monkeypatch, available):
    monkeypatch.setattr(dist, "is_available", lambda: available)
    if not available:
        monkeypatch.delattr(dist, "is_initialized")
    ranks = Ranks.join()
    assert (ranks.rank, ranks.world_size, ranks.is_writer, ranks.complete) == (0, 1, True, True)
    book = CategoryBook()
    book.add([1.0, 3.0], "a")
    assert ranks.sum_labelled(book.take()).value.as_dict() == {"a": (2, 4, 2, 0)}
    assert ranks.sum_labelled(CategorySums.none()).value.labels == ()
    assert ranks.sum_scalars({"loss": (6.0, 4)}).value["loss"].mean == 1.5
    assert math.isnan(ranks.sum_scalars({"loss": (0.0, 0)}).value["loss"].mean)
    assert ranks.gather({"step_s": 0.5}) == Gathered([{"step_s": 0.5}], complete=True)
    ranks.close()
    assert ranks.gather({}).complete


def test_a_timeout_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="timeout_s must be positive, got 0; the default is 30"):
        Ranks.join(timeout_s=0)
