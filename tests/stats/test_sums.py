"""Merging is exact: the laws, and that parts merged equal the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvitals.stats import sums as s
from torchvitals.stats.backend import choose_backend

whole_numbers = st.lists(
    st.one_of(st.integers(-1000, 1000).map(float), st.sampled_from([np.nan, np.inf, -np.inf])),
    max_size=40,
)


def measured(values):
    tensor = torch.tensor(values, dtype=torch.float64)
    return choose_backend("native").measure([tensor])


@settings(max_examples=100)
@given(whole_numbers, whole_numbers, whole_numbers)
def test_merge_laws(a, b, c):
    x, y, z = (measured(values).sums[0] for values in (a, b, c))
    np.testing.assert_array_equal(s.merge(x, y), s.merge(y, x))
    np.testing.assert_array_equal(s.merge(s.merge(x, y), z), s.merge(x, s.merge(y, z)))
    np.testing.assert_array_equal(s.merge(x, s.identity()), x)


@settings(max_examples=100)
@given(whole_numbers, whole_numbers)
def test_parts_merged_equal_the_whole(a, b):
    left, right, whole = measured(a), measured(b), measured(a + b)
    np.testing.assert_array_equal(s.merge(left.sums[0], right.sums[0]), whole.sums[0])


@settings(max_examples=50)
@given(st.lists(whole_numbers, min_size=1, max_size=6))
def test_groups_merge_like_pairs(parts):
    lines = np.stack([measured(values).sums[0] for values in parts])
    split = len(parts) // 2
    starts = np.array([0, split] if split else [0])
    groups = s.merge_groups(lines, starts)
    for group, chunk in zip(groups, np.split(lines, starts[1:]), strict=True):
        total = s.identity()
        for line in chunk:
            total = s.merge(total, line)
        np.testing.assert_array_equal(group, total)


def test_derived_statistics_follow_their_formulas():
    x = torch.randn(3000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 2
    got = dict(zip(s.STATS, s.derive(measured(x.tolist()).sums)[0], strict=True))
    assert got["norm"] == pytest.approx(float(x.norm()))
    assert got["rms"] == pytest.approx(float(x.square().mean().sqrt()))
    assert got["mean"] == pytest.approx(float(x.mean()))
    assert got["std"] == pytest.approx(float(x.std(unbiased=False)))
    assert (got["min"], got["max"]) == (float(x.min()), float(x.max()))
    assert got["zero_frac"] == got["num_nan"] == 0


def test_single_columns_are_those_of_the_whole_table():
    lists = ([3.0, np.nan, -4.0, np.inf], [np.nan, -np.inf], [0.0], [1e-30, 7.5])
    sums = np.concatenate([measured(values).sums for values in lists])
    table = dict(zip(s.STATS, s.derive(sums).T, strict=True))
    np.testing.assert_array_equal(s.norms(sums), table["norm"])
    np.testing.assert_array_equal(s.means(sums), table["mean"])


def test_no_finite_element_gives_nan_not_zero():
    derived = s.derive(measured([np.nan, np.inf]).sums)[0]
    got = dict(zip(s.STATS, derived, strict=True))
    assert np.isnan([got[k] for k in ("norm", "rms", "mean", "std", "min", "max")]).all()
    assert (got["num_nan"], got["num_posinf"], got["num_neginf"]) == (1, 1, 0)


def test_non_finite_values_do_not_poison_the_rest():
    derived = s.derive(measured([3.0, np.nan, -4.0, np.inf]).sums)[0]
    got = dict(zip(s.STATS, derived, strict=True))
    assert got["norm"] == 5.0
    assert (got["min"], got["max"], got["mean"]) == (-4.0, 3.0, -0.5)
