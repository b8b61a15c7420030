from __future__ import annotations

import math

import pytest

from torchvitals.views import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (-0.0, "0"),
        (12.0, "12"),
        (0.54, "0.540"),
        (-1.5396, "-1.54"),
        (123.4, "123"),
        (999.9, "1000"),
        (4321.9, "4322"),
        (9999.7, "1.0e+04"),
        (0.00994, "9.9e-03"),
        (0.01234, "0.0123"),
        (1e-30, "1.0e-30"),
        (3e38, "3.0e+38"),
        (math.nan, "NaN"),
        (math.inf, "Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_number(value: float | None, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 %"),
        (1.0, "100 %"),
        (0.5, "50 %"),
        (0.031, "3.1 %"),
        (1e-6, "< 0.1 %"),
        (0.99999, "> 99.9 %"),
        (math.nan, "NaN"),
        (None, "–"),
    ],
)
def test_share_never_rounds_to_none_or_all(value: float | None, text: str) -> None:
    assert words.share(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.44, "0.4 s"),
        (9.99, "10 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3600 * 5 + 120, "5 h 02 min"),
        (86400 * 3 + 3600 * 4, "3 d 04 h"),
        (-3, "0.0 s"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_sizes_and_counts() -> None:
    assert [words.size(n) for n in (0, 999, 1000, 12_345_678, 5 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "12 MB",
        "5000 GB",
    ]
    assert [words.amount(n) for n in (999, 45_000, 826_000, 7_100_000_000)] == [
        "999",
        "45 k",
        "0.826 M",
        "7.1 G",
    ]
    assert words.plural(1, "step") == "1 step"
    assert words.plural(1200, "step") == "1,200 steps"
    assert [words.ago(s) for s in (-5, 59, 60, 7200, 90000)] == [
        "just now",
        "just now",
        "1 min ago",
        "2 h ago",
        "1 d ago",
    ]


def test_names_lose_their_beginning() -> None:
    assert words.tail("blocks.11.attn.weight", 12) == "…attn.weight"
    assert words.tail("short", 12) == "short"


def test_shares_above_one() -> None:
    assert [words.share(value) for value in (1.002, 1.7)] == ["> 100 %", "170 %"]
    assert [words.percent(v) for v in (0, 0.001, 0.314, 1)] == ["0 %", "< 1 %", "31 %", "100 %"]


def test_rates_and_short_times() -> None:
    rates = (0.0123, 3.2258, 99.9, 4321.4, 9999, 52_852, 999_960, 2.5e9)
    assert [words.short(rate) for rate in rates] == [
        "0.0123", "3.23", "100", "4,321", "10k", "52.9k", "1M", "2.5G",
    ]  # fmt: skip
    assert [words.scaled(f, "FLOP/s") for f in (1.2e12, 8.3e7, 5e3, 3e18)] == [
        "1.2 TFLOP/s", "83 MFLOP/s", "5 kFLOP/s", "3 EFLOP/s",
    ]  # fmt: skip
    times = (0, 85e-6, 0.0124, 0.31, 0.99999, 1.2, 200)
    assert [words.seconds(time) for time in times] == [
        "0 s", "85 µs", "12.4 ms", "310 ms", "1 s", "1.2 s", "3 min 20 s",
    ]  # fmt: skip
