"""The figures of bench/launch.py are what they say."""

from __future__ import annotations

import pytest

from launch import BARE, EVERY, LIMIT, RUN, WATCH, Ratio, Segment, cost, ratio


def segment(plain: float, monitored: float, process: float) -> Segment:
    steps = [monitored if k % EVERY == 0 else plain for k in range(1, 21)]
    return {"wall_s": steps, "thread_s": steps, "process_s": process}


def test_a_step_costs_its_share_of_monitored_ones() -> None:
    segments = [segment(1.0, 3.0, 30.0), segment(1.0, 3.0, 50.0), segment(9.0, 90.0, 40.0)]
    assert cost(segments, "wall") == pytest.approx(0.9 * 1.0 + 0.1 * 3.0)
    assert cost(segments, "process") == pytest.approx(120 / 60)


def test_ratios_are_of_the_same_rounds() -> None:
    """The machine gets slower and slower: that is no difference between the two."""
    under = [segment(1.0 * slow, 2.0 * slow, 1.0) for slow in (1, 2, 4, 8, 16)]
    over = [segment(1.5 * slow, 3.0 * slow, 1.0) for slow in (1, 2, 4, 8, 16)]
    assert ratio(over, under, "thread") == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize(
    ("value", "low", "high", "says"),
    [
        (1.0, 0.99, 1.01, "pass"),
        (1.0, 0.9, 1.1, "unclear (pass)"),
        (1.05, 1.0, 1.1, "unclear (FAIL)"),
        (1.05, 1.04, 1.06, "FAIL"),
    ],
)
def test_verdicts(value: float, low: float, high: float, says: str) -> None:
    assert Ratio(RUN, WATCH, "wall", value, low, high).verdict(LIMIT) == says
    assert Ratio(RUN, BARE, "wall", value, low, high).verdict(LIMIT) == ""
    assert Ratio(RUN, WATCH, "process", value, low, high).verdict(LIMIT) == ""
