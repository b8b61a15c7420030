"""Envelope and matrix(points=…) never lose a spike or a NaN."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_for_tests import header, row, writer

from torchvitals.record import ConfigError, Key, Row
from torchvitals.store import drawing, open_run
from torchvitals.store import pyramid as pyramids

ODD = [np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0]


def spiky(draw, rows, columns=3):
    values = np.random.default_rng(draw(st.integers(0, 99))).standard_normal((rows, columns))
    spikes = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1), st.sampled_from(ODD))
    for at, column, value in draw(st.lists(spikes, max_size=8)):
        values[at, column] = value
    return values.astype(np.float32)


def check_envelope(got, steps, values, points, *, exact):
    assert len(got.steps) <= points
    assert (np.diff(got.steps) > 0).all()
    assert got.count.sum() == len(steps)
    finite = np.isfinite(values)
    if finite.any():
        assert np.nanmax(got.high) == values[finite].max()
        assert np.nanmin(got.low) == values[finite].min()
    assert got.bad.any() == (~finite).any()
    np.testing.assert_array_equal(got.last[-1], values[-1])
    if exact:
        edges = np.append(0, np.cumsum(got.count))
        for at, (a, b) in enumerate(pairwise(edges)):
            part = values[a:b]
            good = part[np.isfinite(part)]
            assert got.steps[at] == steps[a]
            assert got.bad[at] == (len(good) < len(part))
            np.testing.assert_array_equal(got.low[at], good.min() if len(good) else np.nan)
            np.testing.assert_array_equal(got.high[at], good.max() if len(good) else np.nan)
            np.testing.assert_array_equal(got.last[at], part[-1])


@settings(max_examples=25)
@given(st.data(), st.sampled_from([1, 2, 7, 100]), st.sampled_from([1, 3, 5, 400, 10_000]))
def test_nothing_is_lost(tmp_path_factory, data, stride, points):
    path = tmp_path_factory.mktemp("run")
    values = spiky(data.draw, 900)
    keys = header(3)
    start, stop = data.draw(st.sampled_from([(None, None), (100, None), (70, 850)]))
    w = writer(path, seal_rows=200)
    for at, line in enumerate(values):
        w.append(Row(at * stride, 0.0, keys, line))
    w.commit()
    steps = np.arange(900) * stride
    inside = np.ones(900, dtype=bool)
    inside &= (steps >= start) if start is not None else True
    inside &= (steps < stop) if stop is not None else True
    with open_run(path) as history:
        for at, key in enumerate(keys):
            if not inside.any():
                continue
            got = history.envelope(key, points, start=start, stop=stop)
            # Few points: from the pyramids (cells of 64 rows); many: from the values.
            check_envelope(got, steps[inside], values[inside, at], points, exact=True)
        thin = history.matrix("gradient", "rms", points=points, start=start, stop=stop)
        assert len(thin.steps) <= points
        for at in range(3 if inside.any() else 0):
            mine = values[inside, at]
            assert np.isnan(thin.values[:, at]).any() == np.isnan(mine).any()
            if not np.isnan(mine).any():
                assert np.abs(thin.values[:, at]).max() == np.abs(mine).max()
    w.close()


@settings(max_examples=40)
@given(st.data(), st.integers(1, 200))
def test_a_thinned_matrix_shows_each_buckets_peak(data, points):
    values = spiky(data.draw, 150)
    steps, thin = drawing.thinned(np.arange(150), values, points)
    length = -(-150 // points)
    for at, step in enumerate(steps):
        block = values[step : step + length]
        for column in range(3):
            part = block[:, column]
            want = np.nan if np.isnan(part).any() else np.abs(part).max()
            np.testing.assert_array_equal(np.abs(thin[at, column]), want)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 200), st.booleans())
def test_summaries_equal_their_definition(data, rows, gaps):
    values = spiky(data.draw, rows)
    if gaps:
        mask = np.random.default_rng(rows).random(values.shape) < 0.4
        values.view(np.uint32)[mask] = 0x7FC0D15E
    cells = pyramids.summarise(np.arange(rows), values)
    assert len(cells.low) == pyramids.num_cells(rows)
    for cell, column in np.ndindex(cells.low.shape):
        part = values[cell * 64 : cell * 64 + 64, column]
        there = part[part.view(np.uint32) != 0x7FC0D15E]
        good = there[np.isfinite(there)]
        assert cells.num_values[cell, column] == len(there)
        np.testing.assert_array_equal(cells.low[cell, column], good.min() if len(good) else np.nan)
        np.testing.assert_array_equal(cells.high[cell, column], good.max() if len(good) else np.nan)
        want = (
            np.isnan(there).any() * 1 | np.isposinf(there).any() * 2 | np.isneginf(there).any() * 4
        )
        assert cells.flags[cell, column] == want
        if len(there):
            np.testing.assert_array_equal(cells.last[cell, column], there[-1])
        else:
            assert cells.last[cell, column].view(np.uint32) == 0x7FC0D15E


def test_pyramids_are_really_used(run, monkeypatch):
    keys = header(70)
    with writer(run, seal_rows=128) as w:
        for step in range(1280):
            w.append(row(step, keys, np.sin(step)))
    with open_run(run) as history:
        for name in ("values", "column"):
            monkeypatch.setattr(history._source, name, lambda *_, **__: pytest.fail("read values"))
        assert len(history.envelope(keys[69], 5).steps) == 5
        assert history.matrix("gradient", "rms", points=5).values.shape == (5, 70)


def test_interleaved_layouts_draw_from_pyramids_too(run, monkeypatch):
    """Every tenth step measures more: the same column lives in two layouts."""
    some, more = header(3), header(5)
    with writer(run, seal_rows=128) as w:
        for step in range(2560):
            w.append(row(step, more if step % 10 == 0 else some, step))
    with open_run(run) as history:
        for name in ("values", "column"):
            monkeypatch.setattr(history._source, name, lambda *_, **__: pytest.fail("read values"))
        got = history.envelope(some[0], 10, stop=2560)
        assert got.count.sum() == 2560
        assert (got.low.min(), got.high.max(), got.last[-1]) == (0, 2559, 2559)


def test_superseded_and_overwritten_values_are_not_drawn(run):
    key = header(1)
    with writer(run, seal_rows=64) as w:
        for step in range(640):
            w.append(row(step, key, 1e9 if step in (100, 500) else 1))
        w.append(row(100, key, 2))
    with writer(run, resume=True, seal_rows=64) as w:
        for step in range(300, 640):
            w.append(row(step, key, 3))
    with open_run(run) as history:
        for points in (2, 1000):
            assert np.nanmax(history.envelope(key[0], points).high) == 3
            assert history.matrix("gradient", "rms", points=points).values.max() == 3
        assert np.nanmax(history.envelope(key[0], 2, attempt=1).high) == 1e9


def test_derived_stats_have_envelopes(run):
    low, high = Key("gradient", "fc", "min"), Key("gradient", "fc", "max")
    with writer(run) as w:
        for step in range(100):
            w.append(row(step, (low, high), [-step, step / 2]))
    with open_run(run) as history:
        assert history.envelope("gradient/fc/absmax", 10).high.max() == 99


@pytest.mark.parametrize("points", [0, -1])
def test_points_must_be_positive(run, points):
    with writer(run) as w:
        w.append(row(0, header(1), 1))
    with open_run(run) as history:
        with pytest.raises(ConfigError, match=f"at least 1, got {points}"):
            history.envelope(header(1)[0], points)
        with pytest.raises(ConfigError, match=f"at least 1, got {points}"):
            history.matrix("gradient", "rms", points=points)
