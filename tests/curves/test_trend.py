"""Falling, flat or rising lately."""

from __future__ import annotations

import math

import numpy as np
import pytest

from torchvitals.curves import trend_of

STEPS = np.arange(1000)


def noise(seed: int, size: float = 1.0) -> np.ndarray:
    return size * np.random.default_rng(seed).standard_normal(len(STEPS))


@pytest.mark.parametrize("seed", range(5))
def test_a_slope_under_noise_is_seen(seed: int) -> None:
    slope = 2e-3 * STEPS
    assert trend_of(STEPS, 5 - slope + noise(seed, 0.2)).word == "falling"
    assert trend_of(STEPS, 5 + slope + noise(seed, 0.2)).word == "rising"


def test_noise_alone_is_flat() -> None:
    words = [trend_of(STEPS, 2 + noise(seed, 0.2)).word for seed in range(300)]
    assert words.count("flat") >= 294


def test_noise_that_hangs_together_is_rarely_taken_for_a_trend() -> None:
    def smooth(seed: int) -> np.ndarray:
        return np.convolve(noise(seed), np.ones(10) / 10, mode="same")

    words = [trend_of(STEPS, 2 + smooth(seed)).word for seed in range(300)]
    assert words.count("flat") >= 285


def test_change_is_relative_and_per_1000_steps() -> None:
    # The middles of the two fifths are 200 points, so 2000 steps, apart.
    steps = 10 * STEPS
    values = np.where(STEPS < 800, 4.0, 3.0)
    direction = trend_of(steps, values)
    assert direction.word == "falling"
    assert direction.change_per_1000 == pytest.approx(-0.25 / 2)


def test_only_lately_counts() -> None:
    values = np.where(STEPS < 500, 10.0 - STEPS / 100, 5.0) + noise(0, 0.05)
    assert trend_of(STEPS, values).word == "flat"


def test_a_constant_is_flat() -> None:
    assert trend_of(STEPS, np.full(1000, 2.5)).word == "flat"
    zero = trend_of(STEPS, np.zeros(1000))
    assert zero.word == "flat"
    assert math.isnan(zero.change_per_1000)


def test_spikes_and_nan_do_not_turn_it() -> None:
    values = 5 - 2e-3 * STEPS + noise(1, 0.1)
    values[[850, 900, 950]] = 1e6
    values[::7] = np.nan
    assert trend_of(STEPS, values).word == "falling"


@pytest.mark.parametrize("num", [0, 1, 39])
def test_few_points_are_unknown(num: int) -> None:
    direction = trend_of(STEPS[:num], np.linspace(5, 1, num))
    assert direction.word == "unknown"
    assert math.isnan(direction.change_per_1000)


def test_forty_points_are_enough() -> None:
    assert trend_of(STEPS[:40], np.linspace(5, 1, 40)).word == "falling"


def test_a_run_that_ends_in_nan_is_unknown() -> None:
    values = np.where(STEPS < 900, 2.0, np.nan)
    assert trend_of(STEPS, values).word == "unknown"


def test_order_does_not_matter_and_the_later_of_two_counts() -> None:
    values = 5 - 2e-3 * STEPS
    shuffled = np.random.default_rng(0).permutation(1000)
    assert trend_of(STEPS[shuffled], values[shuffled]) == trend_of(STEPS, values)
    # A resume wrote the last 500 steps again.
    steps = np.concatenate([STEPS, STEPS[500:]])
    again = np.concatenate([np.where(STEPS < 500, values, 99.0), values[500:]])
    assert trend_of(steps, again) == trend_of(STEPS, values)


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="equally long, got 3 and 2"):
        trend_of([0, 1, 2], [1.0, 2.0])
    with pytest.raises(ValueError, match="steps must be finite"):
        trend_of([0, np.nan], [1.0, 2.0])
