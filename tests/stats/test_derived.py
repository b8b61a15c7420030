"""What the kernel derives from sums is what numpy does, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvitals.probes.probe import blank, set_stats
from torchvitals.stats import derived as module
from torchvitals.stats import sums as s
from torchvitals.stats.derived import derived

number = st.floats(-1e200, 1e200, width=64)
counts = st.integers(0, 5).map(float)


@st.composite
def lines(draw):
    """The sums of one tensor: also of none, of non-finite elements alone, of equal ones."""
    nan, posinf, neginf = draw(counts), draw(counts), draw(counts)
    finite = draw(st.integers(0, 10**9))
    count = finite + nan + posinf + neginf
    if finite == 0:
        return [count, 0.0, 0.0, np.inf, -np.inf, 0.0, nan, posinf, neginf]
    low, high = sorted((draw(number), draw(number)))
    zeros = float(draw(st.integers(0, finite)))
    return [count, draw(number), abs(draw(number)), low, high, zeros, nan, posinf, neginf]


steps = st.integers(1, 4).flatmap(
    lambda num: st.lists(
        st.lists(lines(), min_size=num, max_size=num).map(np.array), min_size=1, max_size=3
    )
)


@settings(max_examples=200)
@given(steps, st.integers(0, 2), st.integers(0, 3))
def test_equals_numpy(tables, skip, more):
    width = len(s.STATS) - skip
    out = blank((len(tables), len(tables[0]), width + more))
    untouched = out[..., width:].tobytes()
    sumsq = derived(tables, out, skip=skip)
    with np.errstate(over="ignore", under="ignore"):
        wanted = s.derive(np.stack(tables))[..., skip:].astype(np.float32)
    np.testing.assert_array_equal(out[..., :width], wanted)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(out[..., :width])[known], np.signbit(wanted)[known])
    assert out[..., width:].tobytes() == untouched
    np.testing.assert_array_equal(sumsq, s.finite_sumsq(np.stack(tables)))


@pytest.fixture(params=["kernel", "none"])
def tables(request, monkeypatch):
    if request.param == "none":
        monkeypatch.setattr(module, "_function", lambda: None)
    else:
        assert module._function() is not None
    found = np.random.default_rng(0).random((3, 4, len(s.FIELDS)))
    found[..., s.COUNT] = 9.0
    return list(found)


def test_some_lines_of_a_table(tables):
    table = blank((3, 6, len(s.STATS)))
    sumsq = set_stats(tables, table, [5, 1, 0, 2])
    np.testing.assert_array_equal(table[:, [5, 1, 0, 2]], s.derive(np.stack(tables)).astype("f4"))
    assert np.isnan(table[:, [3, 4]]).all()
    np.testing.assert_array_equal(sumsq, np.stack(tables)[..., s.SUMSQ])


def test_tables_that_are_not_one_piece(tables):
    table = blank((3, 4, len(s.STATS)))
    derived([np.asfortranarray(one) for one in tables], table)
    np.testing.assert_array_equal(table, s.derive(np.stack(tables)).astype("f4"))
    slices = blank((3, 4, 2 * len(s.STATS)))[..., ::2]
    derived(tables, slices)
    np.testing.assert_array_equal(slices, table)
