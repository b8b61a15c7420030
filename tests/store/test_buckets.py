"""`History.buckets`: what `matrix(points=…)` shows, and everything it does not."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_for_tests import header, row, start_child, writer

from torchvitals.record import ConfigError, Key, Row
from torchvitals.store import open_run

ODD = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0, -0.0]
MISSING_BITS = 0x7FC0D15E


def spiky(seed, rows, columns):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    for _ in range(8):
        values[rng.integers(rows), rng.integers(columns)] = rng.choice(ODD)
    values.view(np.uint32)[rng.random(values.shape) < 0.2] = MISSING_BITS
    return values


@settings(max_examples=20)
@given(st.integers(0, 999), st.sampled_from([1, 3, 9, 200, 5000]), st.booleans())
def test_a_bucket_holds_everything_that_falls_in_it(tmp_path_factory, seed, points, quick):
    path = tmp_path_factory.mktemp("run")
    values = spiky(seed, 700, 3)
    keys = header(3)
    with writer(path, seal_rows=128) as w:
        for step, line in enumerate(values):
            w.append(Row(step, 0.0, keys, line))
    with open_run(path) as history:
        got = history.buckets("gradient", "rms", points, most_values=1 if quick else None)
        thin = history.matrix("gradient", "rms", points=points)
    assert len(got.steps) <= points
    assert (np.diff(got.steps) > 0).all()
    if quick:
        assert len(got.steps) <= 700 // 64 + 1
    for column in range(3):
        mine = values[:, column]
        there = mine[mine.view(np.uint32) != MISSING_BITS]
        good = there[np.isfinite(there)]
        assert got.count[:, column].sum() == len(there)
        assert np.nanmin(got.low[:, column]) == good.min()
        assert np.nanmax(got.high[:, column]) == good.max()
        want = np.isnan(there).any() | 2 * np.isposinf(there).any() | 4 * np.isneginf(there).any()
        assert np.bitwise_or.reduce(got.flags[:, column]) == want
        np.testing.assert_array_equal(got.last[got.count[:, column] > 0, column][-1], there[-1])
    if not quick:
        np.testing.assert_array_equal(got.steps, thin.steps)
        finite = np.isfinite(thin.values)
        peak = np.where(np.abs(got.low) > np.abs(got.high), got.low, got.high)
        np.testing.assert_array_equal(peak[finite], thin.values[finite])


def test_buckets_of_some_sites(run):
    keys = header(5)
    with writer(run, seal_rows=64) as w:
        for step in range(300):
            w.append(row(step, keys, np.arange(5) * step))
    with open_run(run) as history:
        got = history.buckets("gradient", "rms", 2, sites={"layers.3", "layers.1", "nope"})
        assert got.sites == ["layers.1", "layers.3"]
        assert got.high[-1].tolist() == [299, 897]
        assert history.buckets("gradient", "rms", 2, sites=()).sites == []
        with pytest.raises(ConfigError):
            history.buckets("gradient", "rms", 0)


@pytest.mark.parametrize("points", [1, 4, 400])
def test_absmax_needs_no_values(run, points):
    low, high = Key("gradient", "fc", "min"), Key("gradient", "fc", "max")
    rng = np.random.default_rng(0)
    ends = np.sort(rng.standard_normal((400, 2)).astype(np.float32), axis=1)
    ends[70] = [-np.inf, 5]
    ends[300, 1] = np.nan
    with writer(run, seal_rows=64) as w:
        for step, line in enumerate(ends):
            w.append(row(step, (low, high), line))
    with open_run(run) as history:
        got = history.buckets("gradient", "absmax", points)
        _, values = history.series("gradient/fc/absmax")
    edges = np.append(got.steps, 400)
    for at, (a, b) in enumerate(pairwise(edges)):
        part = values[a:b]
        good = part[np.isfinite(part)]
        if len(good):
            # Cells of 64 rows may begin in the bucket before.
            assert got.low[at, 0] <= got.high[at, 0]
        assert got.low[at, 0] <= np.nanmin(np.append(good, np.inf)) or not len(good)
    assert np.nanmax(got.high) == np.abs(ends[np.isfinite(ends)]).max()
    assert np.bitwise_or.reduce(got.flags[:, 0]) == 1 | 2


def test_layouts_that_come_and_go(run):
    """Columns that only some rows have: what is not there holds nothing."""
    some, more = header(2), header(4)
    with writer(run, seal_rows=64) as w:
        for step in range(640):
            w.append(row(step, more if step < 320 else some, step))
    with open_run(run) as history:
        got = history.buckets("gradient", "rms", 10)
    assert got.count[:5].tolist() == [[64] * 4] * 5
    assert got.count[5:].tolist() == [[64, 64, 0, 0]] * 5
    assert np.isnan(got.high[5:, 2:]).all()
    assert got.high[-1, 0] == 639


def test_a_stamp_is_the_same_in_every_process(run):
    with writer(run) as w:
        w.append(row(0, header(1), 1))
        w.commit()
        with open_run(run) as history:
            stamps = [history.stamp()]
            child = start_child(
                "import sys; from torchvitals.store import open_run; "
                "print(open_run(sys.argv[1]).stamp())", run,
            )  # fmt: skip
            assert child.communicate(timeout=60)[0].strip() == stamps[0]
            assert history.stamp() == stamps[0]
            w.append(row(1, header(1), 1))
            w.commit()
            stamps.append(history.stamp())
    with open_run(run) as history:
        stamps.append(history.stamp())
    assert len(set(stamps)) == 3, "more rows, and then the end of the run"
