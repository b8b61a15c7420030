"""Writer → file → history, against a plain dictionary."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_for_tests import header, row, scalars, writer

from torchvitals.record import MISSING, ConfigError, Event, HistogramRow, Key, Row
from torchvitals.record.bins import NUM_BINS
from torchvitals.store import open_run, verify
from torchvitals.store.connect import connect_writer

KEYS = header(3) + header(2, "parameter") + (Key.scalar("loss"),)
BITS = st.sampled_from(
    [0x7FC00000, 0x7FC00001, 0x7FC0D15E, 0x7F800000, 0xFF800000, 1 << 31, 1, 0x3F800000]
) | st.integers(0, 2**32 - 1)
MISSING_WORD = 0x7FC0D15E


@st.composite
def written(draw):
    """Rows with any columns, steps in any order, some steps twice."""
    steps = draw(st.lists(st.integers(0, 30), min_size=1, max_size=40))
    rows = []
    for step in steps:
        keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=6, unique=True))
        words = draw(st.lists(BITS, min_size=len(keys), max_size=len(keys)))
        rows.append((step, tuple(keys), np.array(words, dtype=np.uint32)))
    return rows


@settings(max_examples=60)
@given(written(), st.integers(2, 9), st.booleans())
def test_whatever_was_written_is_read(tmp_path_factory, rows, seal_rows, closed):
    path = tmp_path_factory.mktemp("run")
    w = writer(path, seal_rows=seal_rows)
    expected: dict[Key, dict[int, int]] = {}
    for step, keys, words in rows:
        w.append(Row(step, float(step), keys, words.view(np.float32)))
        for key, word in zip(keys, words.tolist(), strict=True):
            if word != MISSING_WORD:
                expected.setdefault(key, {})[step] = word
    if closed:
        w.close()
    else:
        w.commit()
    with open_run(path) as history:
        for key in KEYS:
            if key not in history.keys(key.kind):
                assert key not in {k for _, keys, _ in rows for k in keys}
                continue
            want = sorted(expected.get(key, {}).items())
            steps, values = history.series(key)
            assert steps.tolist() == [step for step, _ in want]
            assert values.view(np.uint32).tolist() == [word for _, word in want]
        matrix = history.matrix("gradient", "rms")
        for at, site in enumerate(matrix.sites):
            mine = expected.get(Key("gradient", site, "rms"), {})
            got = matrix.values[:, at].copy().view(np.uint32).tolist()
            assert got == [mine.get(step, MISSING_WORD) for step in matrix.steps.tolist()]
        for step in {step for step, _, _ in rows}:
            want_row = {key for key, column in expected.items() if step in column}
            got_row = history.row(step)
            assert got_row.keys() == want_row
            for key, value in got_row.items():
                want = np.uint32(expected[key][step]).view(np.float32)
                assert np.array_equal(value, want, equal_nan=True)
    assert verify(path).problems == []
    w.close()
    assert verify(path).problems == []


def test_many_sealed_blocks_of_many_columns(run):
    rng = np.random.default_rng(0)
    keys = header(75)
    data = rng.standard_normal((700, 75)).astype(np.float32)
    with writer(run, seal_rows=128) as w:
        for step, values in enumerate(data):
            w.append(Row(step, step / 10, keys, values))
    with open_run(run) as history:
        assert history.keys() == list(keys)
        for at in (0, 31, 32, 74):
            steps, values = history.series(keys[at])
            np.testing.assert_array_equal(steps, np.arange(700))
            np.testing.assert_array_equal(values, data[:, at])
        steps, values = history.series(keys[3], start=100, stop=300)
        np.testing.assert_array_equal(steps, np.arange(100, 300))
        np.testing.assert_array_equal(values, data[100:300, 3])
        np.testing.assert_array_equal(history.matrix("gradient", "rms").values, data)
        assert list(history.row(555).values()) == data[555].tolist()
        np.testing.assert_allclose(history.times().times, np.arange(700) / 10)
    assert verify(run).counts["blocks"] == 6


def test_scalars_every_step_tensors_every_tenth(run):
    keys = header(40)
    w = writer(run, seal_rows=50)
    for step in range(301):
        w.append(scalars(step, loss=1.0 / (step + 1)))
        if step % 10 == 0:
            w.append(row(step, keys, step))
    for finished in (False, True):
        w.close() if finished else w.commit()
        with open_run(run) as history:
            assert len(history.series("loss").steps) == 301
            steps, values = history.series("gradient/layers.7/rms")
            assert steps.tolist() == list(range(0, 301, 10))
            assert values.tolist() == list(range(0, 301, 10))
            assert history.steps().tolist() == list(range(301))
            assert history.steps("gradient").tolist() == list(range(0, 301, 10))
            assert len(history.row(10)) == 41
            assert len(history.row(11)) == 1
            assert history.row(9999) == {}
            assert history.last_step == 300


def test_columns_join_later(run):
    early, late = header(5), header(9)
    with writer(run, seal_rows=16) as w:
        for step in range(100):
            w.append(row(step, early if step < 60 else late, step))
    with open_run(run) as history:
        assert len(history.keys()) == 9
        assert history.series(late[0]).steps.tolist() == list(range(100))
        assert history.series(late[8]).steps.tolist() == list(range(60, 100))
        matrix = history.matrix("gradient", "rms")
        assert matrix.values.shape == (100, 9)
        assert np.isnan(matrix.values[:60, 5:]).all()
        assert not np.isnan(matrix.values[60:]).any()
        assert not np.isnan(matrix.values[:, :5]).any()


def test_the_last_value_wins_and_missing_never_does(run):
    a, b = header(2)
    with writer(run, seal_rows=4) as w:
        w.append(row(1, (a, b), [1, 2]))
        w.append(row(1, (a,), 5))
        w.append(row(1, (a, b), [MISSING, 7]))
        w.append(row(2, (b, a), [8, 9]))
    with open_run(run) as history:
        assert history.series(a).values.tolist() == [5, 9]
        assert history.series(b).values.tolist() == [7, 8]
        assert history.row(1) == {a: 5, b: 7}
        assert history.matrix("gradient", "rms").values.tolist() == [[5, 7], [9, 8]]


def test_changing_subsets_do_not_breed_layouts(run):
    rng = np.random.default_rng(0)
    names = [f"metric_{i}" for i in range(40)]
    expected: dict[str, list[tuple[int, float]]] = {name: [] for name in names}
    with writer(run, seal_rows=64) as w:
        for step in range(600):
            chosen = rng.permutation(names)[: rng.integers(1, 12)].tolist()
            w.append(scalars(step, **{name: float(step) for name in chosen}))
            for name in chosen:
                expected[name].append((step, float(step)))
    assert verify(run).ok
    assert verify(run).counts["layouts"] <= 16 + 40
    with open_run(run) as history:
        for name in names:
            steps, values = history.series(name)
            assert list(zip(steps.tolist(), values.tolist(), strict=True)) == expected[name]


def test_equal_headers_share_a_layout(run):
    with writer(run) as w:
        for step in range(5):
            w.append(row(step, header(4), step))
            w.append(row(step, header(4)[::-1], [0, 1, 2, 3]))
    assert verify(run).counts["layouts"] == 1
    with open_run(run) as history:
        assert [history.series(key).values[0] for key in header(4)] == [3, 2, 1, 0]


def test_histograms(run):
    rng = np.random.default_rng(0)
    sites = tuple(("gradient", f"layers.{i}") for i in range(6))
    counts = rng.integers(0, 1000, (30, 6, NUM_BINS), dtype=np.uint32)
    w = writer(run, seal_rows=8)
    for step in range(30):
        w.append_histograms(HistogramRow(step * 10, float(step), sites, counts[step]))
    for finished in (False, True):
        w.close() if finished else w.commit()
        with open_run(run) as history:
            assert history.histogram_sites() == list(sites)
            assert history.keys() == []
            steps, got = history.histograms("layers.5", "gradient")
            assert steps.tolist() == list(range(0, 300, 10))
            np.testing.assert_array_equal(got, counts[:, 5])
            part = history.histograms("layers.5", "gradient", start=35, stop=70)
            assert part.steps.tolist() == [40, 50, 60]
            for asked, at in ((None, 29), (55, 5), (0, 0)):
                one = history.histogram("layers.2", "gradient", step=asked)
                assert one.step == at * 10
                np.testing.assert_array_equal(one.counts, counts[at, 2])


def test_histograms_of_changing_sites_keep_their_gaps(run):
    rng = np.random.default_rng(0)
    expected: dict[str, list[int]] = {}
    with writer(run, seal_rows=8) as w:
        for step in range(60):
            names = rng.permutation(8)[: rng.integers(1, 8)].tolist()
            sites = tuple(("gradient", f"s{n}") for n in names)
            block = np.zeros((len(names), NUM_BINS), dtype=np.uint32)
            block[:, 7] = step
            w.append_histograms(HistogramRow(step, 0.0, sites, block))
            for name in names:
                expected.setdefault(f"s{name}", []).append(step)
    with open_run(run) as history:
        for site, steps in expected.items():
            got = history.histograms(site, "gradient")
            assert got.steps.tolist() == steps
            assert got.counts[:, 7].tolist() == steps


def test_events(run):
    with writer(run) as w:
        w.event(Event(3, 1.5, "checkpoint", "saved", {"path": "a.pt", "n": [1, 2]}))
        w.event(Event(4, 2.5, "probe", "switched off"))
    with open_run(run) as history:
        assert [event.kind for event in history.events()] == ["checkpoint", "probe"]
        (only,) = history.events("checkpoint")
        assert only == Event(3, 1.5, "checkpoint", "saved", {"path": "a.pt", "n": [1, 2]})


@pytest.mark.parametrize("values", [np.zeros(3, np.float32), np.zeros((2, 1), np.float32)])
def test_a_row_that_does_not_fit_its_header_is_refused(run, values):
    with writer(run) as w:
        with pytest.raises(ConfigError, match="header has 2 columns"):
            w.append(Row(0, 0.0, header(2), values))
        with pytest.raises(ConfigError, match="shape"):
            w.append_histograms(HistogramRow(0, 0.0, (("a", "b"),), np.zeros((1, 3), np.uint32)))


def test_an_empty_row_stores_nothing(run):
    with writer(run) as w:
        w.append(Row(0, 0.0, (), np.empty(0, np.float32)))
        w.append_histograms(HistogramRow(0, 0.0, (), np.empty((0, NUM_BINS), np.uint32)))
        assert w.last_step is None


def test_what_is_deleted_is_not_overwritten(tmp_path):
    """Debian's SQLite does so by default: every raw row would be written twice."""
    with contextlib.closing(connect_writer(tmp_path / "run.vitals")) as connection:
        assert connection.execute("PRAGMA secure_delete").fetchone() == (0,)
