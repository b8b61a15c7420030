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
