"""The fixed bins: what falls where, and percentiles read back from counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from torchvitals.record.bins import (
    MAX_EXPONENT,
    MIN_EXPONENT,
    NUM_BINS,
    SIDE,
    ZERO_BIN,
    bin_index,
    bounds,
    magnitude_edges,
    percentiles,
)

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
samples = st.lists(finite, min_size=1, max_size=60).map(np.array)
shares = st.lists(st.floats(0, 100), min_size=1, max_size=8).map(sorted)


def counts_of(x: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.bincount(bin_index(x), minlength=NUM_BINS)


def reference_bin(x: float) -> int:
    """The definition in words: sign, exponent and first mantissa bit, through frexp."""
    if x == 0:
        return ZERO_BIN
    mantissa, exponent = math.frexp(abs(x))  # mantissa in [0.5, 1)
    octave = exponent - 1
    if octave < MIN_EXPONENT:
        side = 0
    elif octave >= MAX_EXPONENT:
        side = SIDE - 1
    else:
        side = 1 + 2 * (octave - MIN_EXPONENT) + (mantissa >= 0.75)
    return ZERO_BIN + 1 + side if x > 0 else ZERO_BIN - 1 - side


def test_layout_is_the_one_in_the_docstring() -> None:
    assert (NUM_BINS, ZERO_BIN, SIDE) == (253, 126, 126)
    assert bin_index([-(2.0**22), -(2.0**-41), 0.0, 2.0**-41, 2.0**22]).tolist() == [
        0,
        125,
        126,
        127,
        252,
    ]
    assert bin_index(1.0) == bin_index(1.49) == bin_index(1.5) - 1
    assert magnitude_edges()[1] == 2.0**-40


def test_bins_tile_the_line() -> None:
    low, high = bounds()
    assert low[0] == -np.inf
    assert high[-1] == np.inf
    np.testing.assert_array_equal(high[:-1], low[1:])


@given(finite)
def test_each_value_falls_where_its_bits_say(x: float) -> None:
    assert bin_index(x) == reference_bin(x)


@given(finite)
def test_each_value_lies_in_its_bin(x: float) -> None:
    low, high = bounds()
    index = bin_index(x)
    assert low[index] <= x <= high[index]


@given(samples, samples)
def test_histograms_of_parts_add_up(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    np.testing.assert_array_equal(counts_of(np.concatenate([a, b])), counts_of(a) + counts_of(b))


@given(samples, shares)
def test_percentiles_stay_in_the_bin_of_the_element_with_that_rank(
    x: NDArray[np.float64], q: list[float]
) -> None:
    got = percentiles(counts_of(x), q, x.min(), x.max())
    # Ranks halfway between two elements belong to either.
    ordered = np.sort(x)
    rank = np.array(q) / 100 * (len(x) - 1)
    low, high = bounds()
    below = low[bin_index(ordered[np.floor(rank).astype(int)])]
    above = high[bin_index(ordered[np.ceil(rank).astype(int)])]
    assert np.all((below <= got) & (got <= above))


@given(samples, shares)
def test_percentiles_stay_within_the_data_and_rise(x: NDArray[np.float64], q: list[float]) -> None:
    got = percentiles(counts_of(x), q, x.min(), x.max())
    assert np.all((x.min() <= got) & (got <= x.max()))
    assert np.all(np.diff(got) >= 0)


@given(finite, st.integers(1, 1000), shares)
def test_percentiles_of_constant_data_are_exact(x: float, n: int, q: list[float]) -> None:
    got = percentiles(n * counts_of(np.array([x])), q, x, x)
    np.testing.assert_array_equal(got, np.full(len(q), x))


@given(st.lists(samples, min_size=1, max_size=5), shares)
def test_a_block_is_its_lines(data: list[NDArray[np.float64]], q: list[float]) -> None:
    counts = np.stack([counts_of(x) for x in data])
    low, high = np.array([x.min() for x in data]), np.array([x.max() for x in data])
    block = percentiles(counts, q, low, high)
    for line, (row, lo, hi) in enumerate(zip(counts, low, high, strict=True)):
        np.testing.assert_array_equal(block[line], percentiles(row, q, lo, hi))


def test_mirrored_data_has_mirrored_percentiles() -> None:
    x = np.random.default_rng(0).lognormal(size=10_001)
    there = percentiles(counts_of(x), [10, 40, 90], x.min(), x.max())
    back = percentiles(counts_of(-x), [90, 60, 10], -x.max(), -x.min())
    np.testing.assert_allclose(there, -back, rtol=1e-9)


def test_no_counts_give_nan_and_leave_other_lines_alone() -> None:
    counts = np.stack([np.zeros(NUM_BINS), counts_of(np.array([2.0, 2.0]))])
    got = percentiles(counts, [50], [np.inf, 2.0], [-np.inf, 2.0])
    assert np.isnan(got[0])
    assert got[1] == 2.0
    assert percentiles(np.zeros((0, NUM_BINS)), [1, 2]).shape == (0, 2)


@pytest.mark.parametrize("unknown", [None, np.nan, np.inf])
def test_overflow_without_known_extremes_is_finite(unknown: float | None) -> None:
    got = percentiles(counts_of(np.array([1e7, 1e8])), [0, 50, 100], unknown, unknown)
    assert np.all((got >= 2.0**22) & (got <= 2.0**23))


def test_ramp_is_read_better_than_by_flat_bins() -> None:
    """A density that falls linearly is exactly what the leaning density can express."""
    x = 1 - np.sqrt(np.linspace(0, 1, 200_001))[::-1]  # density 2(1 − x) on 0…1
    exact = np.percentile(x, [50, 75, 90])
    got = percentiles(counts_of(x), [50, 75, 90], x.min(), x.max())
    np.testing.assert_allclose(got, exact, rtol=2e-3)
