"""Forecasts of curves whose future is known, and the ways of saying "not known"."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from torchvitals.curves import Forecast, forecast

NUM = 3000
STEPS = np.arange(NUM)
END = 4 * NUM
"""What is seen is the first quarter of the run."""

Curve = Callable[[np.ndarray], np.ndarray]


def power_law(b: float, c: float, a: float = 4.0, t0: float = 20.0) -> Curve:
    return lambda t: c + a * (1 + np.asarray(t) / t0) ** -b


def white(random: np.random.Generator, size: float) -> np.ndarray:
    return size * random.standard_normal(NUM)


def lasting(random: np.random.Generator, size: float) -> np.ndarray:
    """Noise that remembers about ten steps."""
    out, last = np.empty(NUM), 0.0
    for i, shock in enumerate(random.standard_normal(NUM)):
        last = 0.9 * last + math.sqrt(1 - 0.81) * shock
        out[i] = size * last
    return out


def judge(curves: list[Curve], noises: list[Callable[..., np.ndarray]], seeds: int) -> np.ndarray:
    """For each case: inside the band, relative error, relative width of the band, confident."""
    out = []
    kinds = itertools.product(curves, noises, [0.003, 0.03, 0.1])
    for kind, (curve, noise, size) in enumerate(kinds):
        for seed in range(seeds):
            random = np.random.default_rng([seed, kind])
            told = forecast(STEPS, curve(STEPS) * (1 + noise(random, size)), END, seed=seed)
            truth = float(curve(np.array(END)))
            out.append(
                (
                    told.low <= truth <= told.high,
                    abs(told.value / truth - 1),
                    (told.high - told.low) / truth,
                    told.confident,
                )
            )
    return np.array(out, dtype=float)


def report(name: str, cases: np.ndarray) -> None:
    inside, error, width, confident = cases.T
    print(
        f"{name}: {len(cases)} cases, inside {inside.mean():.1%}, error median "
        f"{np.median(error):.2%} p90 {np.quantile(error, 0.9):.2%}, width median "
        f"{np.median(width):.1%}, confident {confident.mean():.1%}"
    )


def test_power_laws_from_a_quarter_of_the_run() -> None:
    curves = [power_law(b, c) for b in (0.1, 0.25, 0.5, 1.0) for c in (0.0, 0.5, 2.0)]
    cases = judge(curves, [white, lasting], seeds=4)
    report("power laws", cases)
    inside, error, width, confident = cases.T
    assert inside.mean() >= 0.9
    assert np.median(error) <= 0.01
    assert np.quantile(error, 0.9) <= 0.08
    assert np.median(width) <= 0.15  # a band that holds everything would be no use
    assert confident.mean() >= 0.8


def test_exponential_decay_to_a_floor() -> None:
    curves: list[Curve] = [lambda t, tau=tau: 1 + 3 * np.exp(-t / tau) for tau in (300.0, 1000.0)]
    cases = judge(curves, [white, lasting], seeds=12)
    report("exponentials", cases)
    inside, error, *_ = cases.T
    assert inside.mean() >= 0.8
    assert np.median(error) <= 0.01
    assert forecast(STEPS, curves[1](STEPS), END).floor == pytest.approx(1.0, abs=0.01)


def test_two_power_laws_on_top_of_each_other() -> None:
    """No single law fits: the band must say so by being wide, or the forecast in words."""
    curve = power_law(1.0, 1.5, a=5.0, t0=5.0)
    slow = power_law(0.25, 0.0, a=2.0, t0=300.0)
    cases = judge([lambda t: curve(t) + slow(t)], [white, lasting], seeds=8)
    report("two laws", cases)
    inside, error, *_ = cases.T
    assert inside.mean() >= 0.8
    assert np.median(error) <= 0.05


def test_the_law_itself_is_found() -> None:
    told = forecast(STEPS, USUAL(STEPS), END)
    assert told.confident
    assert told.reason == ""
    assert told.value == pytest.approx(TRUTH, rel=1e-3)
    assert told.floor == pytest.approx(1.0, abs=0.01)
    assert told.exponent == pytest.approx(0.4, abs=0.01)
    assert (told.at, told.num_points, told.num_bad) == (END, NUM, 0)


def test_the_band_widens_with_the_distance() -> None:
    values = power_law(0.3, 1.0)(STEPS) * (1 + white(np.random.default_rng(0), 0.02))
    widths = [
        told.high - told.low
        for told in (forecast(STEPS, values, at) for at in (NUM, 2 * NUM, 4 * NUM, 8 * NUM))
    ]
    assert widths == sorted(widths)
    assert widths[-1] > 3 * widths[0]


USUAL = power_law(0.4, 1.0)
TRUTH = float(USUAL(np.array(END)))


def noisy(curve: Curve = USUAL, size: float = 0.02) -> np.ndarray:
    return curve(STEPS) * (1 + white(np.random.default_rng(3), size))


def test_spikes_bend_nothing() -> None:
    values = noisy()
    values[np.random.default_rng(0).random(NUM) < 0.01] = 50.0
    values[0] = 1e30
    values[500:540] += 5 * np.exp(-np.arange(40) / 10)
    told = forecast(STEPS, values, END)
    assert told.low <= TRUTH <= told.high
    assert told.value == pytest.approx(TRUTH, rel=0.02)
    assert told.confident


def test_nan_and_inf_are_left_out_and_counted() -> None:
    values = noisy()
    bad = np.random.default_rng(0).random(NUM) < 0.1
    bad[-1] = False
    values[bad] = np.nan
    values[7] = np.inf
    told = forecast(STEPS, values, END)
    assert told.num_bad == np.count_nonzero(~np.isfinite(values))
    assert told.num_points + told.num_bad == NUM
    assert told.confident
    assert told.value == pytest.approx(TRUTH, rel=0.02)


def test_steps_may_start_anywhere() -> None:
    here, there = forecast(STEPS, noisy(), END), forecast(STEPS + 50_000, noisy(), END + 50_000)
    assert there.value == pytest.approx(here.value)
    assert (there.low, there.high) == pytest.approx((here.low, here.high))


def test_steps_may_be_uneven() -> None:
    random = np.random.default_rng(1)
    for steps in (
        np.unique(np.geomspace(1, NUM, 400).astype(int)),
        np.sort(random.choice(NUM, 500, replace=False)),
        np.concatenate([np.arange(0, 1000), np.arange(1000, NUM, 50)]),
    ):
        values = USUAL(steps) * (1 + 0.01 * random.standard_normal(len(steps)))
        told = forecast(steps, values, END)
        assert told.low <= TRUTH <= told.high
        assert told.value == pytest.approx(TRUTH, rel=0.04)


def test_a_loss_below_zero_has_a_free_floor() -> None:
    told = forecast(STEPS, power_law(0.4, -5.0)(STEPS) + 0.02 * noisy(lambda t: 0 * t + 1), END)
    truth = float(power_law(0.4, -5.0)(np.array(END))) + 0.02
    assert told.confident
    assert told.low <= truth <= told.high
    assert told.floor == pytest.approx(-5.0, abs=0.1)


def test_a_positive_loss_stays_positive() -> None:
    told = forecast(STEPS, noisy(power_law(1.0, 0.0), 0.1), END)
    assert 0.0 <= told.low <= told.value <= told.high
    assert told.floor >= 0.0


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_the_unit_does_not_matter(scale: float) -> None:
    plain, scaled = forecast(STEPS, noisy(), END), forecast(STEPS, scale * noisy(), END)
    assert scaled.value == pytest.approx(scale * plain.value)
    assert scaled.reason == plain.reason


def test_a_constant_stays() -> None:
    told = forecast(STEPS, np.full(NUM, 2.5), END)
    assert told.confident
    assert (told.low, told.value, told.high, told.floor) == (2.5, 2.5, 2.5, 2.5)


def test_it_can_look_back() -> None:
    assert forecast(STEPS, noisy(), 1000).value == pytest.approx(USUAL(np.array(1000)), rel=0.01)
    assert forecast(STEPS, noisy(), -5).value == forecast(STEPS, noisy(), 0).value


def unsure(told: Forecast) -> str:
    assert not told.confident
    assert told.low <= told.value <= told.high
    return told.reason


def test_noise_alone() -> None:
    for seed in range(10):
        values = 2.5 + white(np.random.default_rng(seed), 0.2)
        told = forecast(STEPS, values, END)
        assert unsure(told) == "the noise hides any trend"
        assert told.low - 0.02 <= 2.5 <= told.high + 0.02


def test_rising() -> None:
    for values in (
        2 + 1e-3 * STEPS,
        2 + 1e-3 * STEPS + white(np.random.default_rng(0), 0.3),
        noisy() + 2 * np.maximum(STEPS / NUM - 0.6, 0),
        noisy() + np.exp((STEPS - NUM + 100) / 30),  # has just begun to diverge
    ):
        assert unsure(forecast(STEPS, values, END)) == "the loss is rising"


def test_a_pattern() -> None:
    drop = np.where(STEPS < NUM // 2, 2.0, 1.2)
    wave = 0.3 * np.sin(STEPS / 150)
    line = 5 - 3 * STEPS / NUM + white(np.random.default_rng(0), 0.02)
    for values in (drop + white(np.random.default_rng(0), 0.02), noisy() + wave, line):
        assert unsure(forecast(STEPS, values, END)) == "the fit leaves a pattern"


def test_too_far() -> None:
    reason = unsure(forecast(STEPS, noisy(), 40 * NUM))
    assert reason == "extrapolates 40× beyond what was seen"


def test_too_wide() -> None:
    reason = unsure(forecast(STEPS[:30], noisy(size=0.01)[:30], 200))
    assert reason == "the band spans more than half of the drop so far"


@pytest.mark.parametrize(("num", "points"), [(1, "1 point"), (2, "2 points"), (12, "12 points")])
def test_too_few(num: int, points: str) -> None:
    reason = unsure(forecast(STEPS[:num], noisy()[:num], END))
    assert reason == f"only {points}; 30 are needed"


@pytest.mark.parametrize("num", range(3, 40))
def test_any_number_of_points_gives_a_value(num: int) -> None:
    told = forecast(STEPS[:num], noisy()[:num], END)
    assert told.low <= told.value <= told.high


def test_nothing_finite() -> None:
    told = forecast(STEPS, np.full(NUM, np.nan), END)
    assert told.reason == "values are not finite"
    assert not told.confident
    assert all(math.isnan(x) for x in (told.value, told.low, told.high, told.floor, told.exponent))
    assert told.num_bad == NUM
    assert forecast([], [], 10).reason == "no values yet"


def test_a_run_that_ends_in_nan() -> None:
    values = noisy()
    values[-10:] = np.nan
    assert unsure(forecast(STEPS, values, END)) == "values are not finite: the last 10"
    half = noisy()
    half[np.arange(NUM) % 5 > 1] = np.nan
    assert unsure(forecast(STEPS, half, END)) == "values are not finite: 1800 of 3000"


def test_the_seed_is_the_only_chance() -> None:
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    first, second = forecast(STEPS, noisy(), END), forecast(STEPS, noisy(), END)
    assert first == second
    other = forecast(STEPS, noisy(), END, seed=1)
    assert other != first
    assert other.value == pytest.approx(first.value, rel=0.01)
    assert (np.random.get_state()[1] == state).all()


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="draws must be at least 20, got 5"):
        forecast(STEPS, noisy(), END, draws=5)
    with pytest.raises(ValueError, match="at must be a finite step, got inf"):
        forecast(STEPS, noisy(), math.inf)
