from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.views.made_runs import write_columns
from torchvitals.record import Key
from torchvitals.store import open_run
from torchvitals.views.sparkline import BAD, BLOCKS, drawn, sparkline


def test_a_ramp_uses_every_block() -> None:
    assert sparkline(range(8)) == BLOCKS


def test_values_that_span_orders_are_drawn_by_their_logarithm() -> None:
    assert sparkline([10.0**k for k in range(8)]) == BLOCKS
    assert sparkline([0.0, 1.0, 1e6]) == "▁▁█"
    assert sparkline([-1.0, 0.0, 1e6]) == "▁▁█"  # a log scale has no place for these


def test_constants() -> None:
    assert sparkline([0.0] * 3) == "▁▁▁"
    assert sparkline([2.0] * 3) == "▄▄▄"
    assert sparkline([]) == ""


def test_not_finite_is_marked() -> None:
    assert sparkline([1.0, math.nan, 2.0, math.inf, -math.inf]) == f"▁{BAD}█{BAD}{BAD}"
    assert sparkline([math.nan]) == BAD


@given(st.lists(st.floats(width=32), max_size=40))
def test_one_mark_a_value_and_bad_exactly_where_it_is(values: list[float]) -> None:
    text = sparkline(values)
    assert len(text) == len(values)
    assert [mark == BAD for mark in text] == [not math.isfinite(value) for value in values]
    good = [value for value in values if math.isfinite(value)]
    if good and max(good) > min(good):
        assert text[values.index(max(good))] == BLOCKS[-1]
        assert text[values.index(min(good))] == BLOCKS[0]


def test_a_long_series_keeps_its_spike_and_its_nan(tmp_path: Path) -> None:
    values = np.ones(5000)
    values[1234] = 50.0
    values[4000] = np.nan
    write_columns(tmp_path, {Key.scalar("loss"): values.tolist()})
    with open_run(tmp_path) as history:
        text = drawn(history, Key.scalar("loss"), 20)
    assert len(text) == 20
    assert text.count("█") == 1
    assert text.count(BAD) == 1
    assert text.index("█") in (4, 5)
    assert text.index(BAD) in (15, 16)
