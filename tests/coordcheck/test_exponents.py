"""Slopes and their bands."""

from __future__ import annotations

import numpy as np
import pytest

from torchvitals.coordcheck.exponents import fit

WIDTHS = [64, 128, 256, 512]


def test_a_power_of_the_width() -> None:
    found = fit(WIDTHS, [3.0 * width**0.5 for width in WIDTHS])
    assert found.slope == pytest.approx(0.5)
    assert found.low == found.high == found.slope
    assert found.error == pytest.approx(0.0, abs=1e-12)


def test_band_spans_the_seeds_and_agrees_with_polyfit() -> None:
    dice = np.random.default_rng(0)
    values = np.exp(dice.normal(size=(4, 5)))
    slopes = np.polyfit(np.log(WIDTHS), np.log(values), 1)[0]
    found = fit(WIDTHS, values)
    assert found.slope == pytest.approx(slopes.mean())
    assert (found.low, found.high) == (pytest.approx(slopes.min()), pytest.approx(slopes.max()))
    lines = [
        np.polyval(np.polyfit(np.log10(WIDTHS), np.log10(y), 1), np.log10(WIDTHS)) for y in values.T
    ]
    assert found.error == pytest.approx(np.abs(np.log10(values) - np.transpose(lines)).max())


@pytest.mark.parametrize(
    ("widths", "values", "reason"),
    [
        ([64], [1.0], "one width only"),
        (WIDTHS, [1.0, 1.0, np.nan, np.inf], "not finite at width 256"),
        (WIDTHS, [np.nan] * 4, "not measured"),
        (WIDTHS, [0.0] * 4, "zero"),
        (WIDTHS, [1.0, 0.0, 1.0, 1.0], "zero at width 128"),
    ],
)
def test_no_slope_says_why(widths: list[int], values: list[float], reason: str) -> None:
    found = fit(widths, values)
    assert np.isnan(found.slope)
    assert found.reason == reason
