"""Schedules recognised from what PyTorch's own schedulers produce."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import Optimizer, lr_scheduler

from torchvitals.curves import recognise

NUM = 1000
WARMUP = 100
PEAK = 3e-4

Make = Callable[[Optimizer], Any]


def rates(make: Make, num: int = NUM, lr: float = PEAK) -> np.ndarray:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # SequentialLR steps in a way that PyTorch itself deprecates
        scheduler = make(optimizer)
        out = []
        for _ in range(num):
            out.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(1.0)
            else:
                scheduler.step()
    return np.array(out)


def after_warmup(then: Make) -> Make:
    return lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 1e-3, 1.0, WARMUP), then(o)], [WARMUP]
    )


def factor(of: Callable[[int], float]) -> Make:
    return lambda o: lr_scheduler.LambdaLR(o, of)


def wsd(step: int) -> float:
    return min(1.0, (step + 1) / WARMUP, (NUM - step) / 200)


def half_cosine(share: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, share)))


@dataclass(frozen=True)
class Case:
    name: str
    make: Make
    shape: str
    warmup: int = 0
    drops: int = 0
    words: str = ""


CASES = [
    Case("constant", factor(lambda _: 1.0), "constant", words="constant at 3e-4"),
    Case("ConstantLR", lambda o: lr_scheduler.ConstantLR(o, 1 / 3, 50), "constant", warmup=50),
    Case("LinearLR", lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, NUM), "linear", words="linear"),
    Case(
        "LinearLR that ends early",
        lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, NUM // 2),
        "linear",
        words="linear to 3e-5 in 500 steps and constant from there",
    ),
    Case("cosine", lambda o: lr_scheduler.CosineAnnealingLR(o, NUM, 3e-5), "cosine"),
    Case(
        "half a cosine",
        lambda o: lr_scheduler.CosineAnnealingLR(o, 2 * NUM),
        "cosine",
        words="% of about 2000 steps",
    ),
    Case(
        "a tenth of a cosine",
        lambda o: lr_scheduler.CosineAnnealingLR(o, 10 * NUM),
        "cosine",
        words="so far",
    ),
    Case("a cosine past its end", lambda o: lr_scheduler.CosineAnnealingLR(o, 400), "cyclical"),
    Case(
        "StepLR",
        lambda o: lr_scheduler.StepLR(o, 300, 0.1),
        "step",
        drops=3,
        words="3 drops each by a factor of 0.1 to 3e-7",
    ),
    Case("StepLR, many", lambda o: lr_scheduler.StepLR(o, 30, 0.9), "step", drops=33),
    Case("MultiStepLR", lambda o: lr_scheduler.MultiStepLR(o, [500, 800], 0.1), "step", drops=2),
    Case("one drop", lambda o: lr_scheduler.MultiStepLR(o, [500], 0.1), "step", drops=1),
    Case(
        "ReduceLROnPlateau",
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=150),
        "step",
        drops=6,
    ),
    Case("ExponentialLR", lambda o: lr_scheduler.ExponentialLR(o, 0.995), "exponential"),
    Case("slow ExponentialLR", lambda o: lr_scheduler.ExponentialLR(o, 0.9999), "exponential"),
    Case(
        "range test",
        lambda o: lr_scheduler.ExponentialLR(o, 1.01),
        "exponential",
        words="exponential rise from 3e-4",
    ),
    Case(
        "MultiplicativeLR",
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.997),
        "exponential",
    ),
    Case(
        "warm restarts",
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 200),
        "cyclical",
        words="4 restarts, one every 200 steps",
    ),
    Case(
        "growing warm restarts",
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 70, 2),
        "cyclical",
        words="3 restarts, each cycle 2× as long as the one before",
    ),
    Case(
        "one warm restart",
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 700),
        "cyclical",
        words="1 restart after 700 steps, too few to tell the period",
    ),
    Case(
        "triangles",
        lambda o: lr_scheduler.CyclicLR(o, 1e-5, PEAK, step_size_up=100),
        "cyclical",
        words="4 cycles, one every 200 steps",
    ),
    Case(
        "shrinking triangles",
        lambda o: lr_scheduler.CyclicLR(o, 1e-5, PEAK, step_size_up=100, mode="triangular2"),
        "cyclical",
    ),
    Case(
        "OneCycleLR",
        lambda o: lr_scheduler.OneCycleLR(o, PEAK, NUM),
        "cosine",
        warmup=299,
        words="cosine warm-up over",
    ),
    Case(
        "linear OneCycleLR",
        lambda o: lr_scheduler.OneCycleLR(o, PEAK, NUM, anneal_strategy="linear"),
        "linear",
        warmup=299,
    ),
    Case(
        "three-phase OneCycleLR",
        lambda o: lr_scheduler.OneCycleLR(o, PEAK, NUM, three_phase=True),
        "unknown",
        warmup=299,
        words="of no known shape",
    ),
    Case("PolynomialLR, 1", lambda o: lr_scheduler.PolynomialLR(o, NUM, 1.0), "linear"),
    Case(
        "PolynomialLR, 2",
        lambda o: lr_scheduler.PolynomialLR(o, NUM, 2.0),
        "unknown",
        words="polynomial of power 2",
    ),
    Case(
        "PolynomialLR, 0.9",
        lambda o: lr_scheduler.PolynomialLR(o, NUM, 0.9),
        "unknown",
        words="polynomial of power 0.9",
    ),
    Case(
        "warm-up, cosine",
        after_warmup(lambda o: lr_scheduler.CosineAnnealingLR(o, NUM - WARMUP, 3e-5)),
        "cosine",
        warmup=WARMUP,
        words="linear warm-up over 100 steps to 3e-4, then cosine to 3",
    ),
    Case(
        "warm-up, part of a cosine",
        after_warmup(lambda o: lr_scheduler.CosineAnnealingLR(o, 2 * NUM)),
        "cosine",
        warmup=WARMUP,
        words="so far, 4",
    ),
    Case(
        "warm-up, linear",
        after_warmup(lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, NUM - WARMUP)),
        "linear",
        warmup=WARMUP,
    ),
    Case(
        "warm-up, exponential",
        after_warmup(lambda o: lr_scheduler.ExponentialLR(o, 0.995)),
        "exponential",
        warmup=WARMUP,
    ),
    Case(
        "warm-up, steps",
        after_warmup(lambda o: lr_scheduler.StepLR(o, 300, 0.1)),
        "step",
        warmup=WARMUP,
        drops=2,
    ),
    Case(
        "warm-up, warm restarts",
        after_warmup(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 200)),
        "cyclical",
        warmup=WARMUP,
        words="linear warm-up over 100 steps to 3e-4, then 4 restarts",
    ),
    Case(
        "warm-up, constant",
        factor(lambda i: min(1.0, (i + 1) / WARMUP)),
        "constant",
        warmup=WARMUP - 1,
        words="then constant at 3e-4",
    ),
    Case(
        "warm-up, still going on",
        factor(lambda i: (i + 1) / 2000),
        "unknown",
        warmup=NUM - 1,
        words="may be a warm-up that still goes on",
    ),
    Case("WSD", factor(wsd), "wsd", warmup=WARMUP - 1, words="stable for 70"),
    Case(
        "WSD, one minus square root",
        factor(lambda i: min(1.0, (i + 1) / WARMUP) * (1 - math.sqrt(max(i - 800, 0) / 200))),
        "wsd",
        warmup=WARMUP - 1,
        words="then one minus square root",
    ),
    Case(
        "held, then cosine",
        factor(lambda i: half_cosine(max(i - 300, 0) / 700)),
        "wsd",
        words="stable for 300 steps, then cosine",
    ),
    Case(
        "inverse square root",
        factor(lambda i: min((i + 1) / WARMUP, math.sqrt(WARMUP / (i + 1)))),
        "unknown",
        warmup=WARMUP - 1,
        words="inverse square root",
    ),
    Case(
        "cosine once per epoch",
        factor(lambda i: half_cosine(i // 50 / 20)),
        "cosine",
        words="in 19 stairs",
    ),
    Case("line once per epoch", factor(lambda i: 1 - i // 50 / 20), "linear", words="19 stairs"),
    Case(
        "warm-up that ends between samples",
        factor(lambda i: i / 95 if i < 95 else half_cosine((i - 95) / 600)),
        "cosine",
        warmup=95,
        words="in 600 steps and constant from there",
    ),
    Case("a shape of its own", factor(lambda i: 1 - 0.9 * (i / NUM) ** 5), "unknown"),
]


@cache
def series(case: Case) -> np.ndarray:
    return rates(case.make)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_shape(case: Case, every: int, dtype: type) -> None:
    y = series(case)[::every].astype(dtype)
    found = recognise(np.arange(NUM)[::every], y)
    assert found.shape == case.shape, found.explain
    assert abs(found.warmup_steps - case.warmup) < every + (case.warmup == NUM - 1)
    assert found.num_drops == case.drops
    assert case.words in found.explain
    assert found.peak == float(y.max())
    assert found.final == float(y[-1])
    assert abs(found.peak_step - int(np.argmax(y >= y.max() * (1 - 1e-6))) * every) < every
    if found.shape not in ("unknown", "wsd"):
        assert found.error < 2e-3


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_steps_need_not_start_at_zero(case: Case) -> None:
    here = recognise(np.arange(NUM), series(case))
    there = recognise(np.arange(NUM) + 5000, series(case))
    assert (there.shape, there.warmup_steps) == (here.shape, here.warmup_steps)
    assert there.peak_step == here.peak_step + 5000


def test_a_fall_too_small_to_tell() -> None:
    y = rates(lambda o: lr_scheduler.CosineAnnealingLR(o, 1000 * NUM))
    found = recognise(np.arange(NUM), y)
    assert found.shape == "unknown"
    assert found.explain == "a fall to 3e-4 so far, too little to tell"


def test_two_points_of_a_fall_fit_any_shape() -> None:
    y = np.append(np.full(50, PEAK), PEAK * np.array([0.99, 0.98]))
    found = recognise(np.arange(52), y)
    assert found.shape == "wsd"
    assert "too little to tell" in found.explain


@pytest.mark.parametrize("every", [23, 37, 50])
def test_a_cosine_whose_peak_no_sample_hit(every: int) -> None:
    y = series(next(case for case in CASES if case.name == "warm-up, cosine"))
    found = recognise(np.arange(NUM)[::every], y[::every])
    assert found.shape == "cosine", found.explain
    assert found.error < 2e-3
    assert abs(found.warmup_steps - WARMUP) < every


def test_long_series_are_thinned_not_misread() -> None:
    num = 300_000
    steps = np.arange(num)
    cosine = np.where(steps < 200, steps / 200, 0.5 + 0.5 * np.cos(np.pi * (steps - 200) / num))
    found = recognise(steps, (PEAK * cosine).astype(np.float32))
    assert (found.shape, found.warmup_steps) == ("cosine", 200)
    # In float32 this slow line stands still at most steps: no stairs.
    assert recognise(steps, (PEAK * (1 - 0.01 * steps / num)).astype(np.float32)).shape == "linear"


def test_few_rates() -> None:
    assert recognise([], []).explain == "no rates yet"
    assert math.isnan(recognise([], []).peak)
    assert recognise([0], [0.1]).explain == "constant at 0.1"
    found = recognise([0, 1, 2], [0.3, 0.2, 0.1])
    assert (found.shape, found.explain) == ("unknown", "only 3 rates; 8 are needed")
    assert math.isnan(found.error)


def test_zero_is_a_rate() -> None:
    assert recognise(np.arange(20), np.zeros(20)).explain == "constant at 0"


def test_nan_is_left_out() -> None:
    y = series(next(case for case in CASES if case.name == "warm-up, cosine")).copy()
    y[::3] = np.nan
    assert recognise(np.arange(NUM), y).shape == "cosine"


def test_random_rates_are_no_known_shape() -> None:
    for seed in range(20):
        falling = np.sort(np.random.default_rng(seed).random(200))[::-1] ** 3
        falling[50:] *= 0.3  # a shape with a break in it
        assert recognise(np.arange(200), falling).shape == "unknown"
