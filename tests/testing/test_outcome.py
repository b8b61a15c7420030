"""Harm is seen where it was done, and only there."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from torchvitals.testing import Outcome, as_good, harm

CLEAN = Outcome(
    case="clean", seed=0, steps=100, train_loss=0.1, test_loss=0.2, test_accuracy=0.95,
    reported={"accuracy": 0.95}, waiting_frac=0.05, memory_bytes=10_000_000,
)  # fmt: skip
TEXT = replace(CLEAN, test_accuracy=None, test_loss=1.0, reported={})


@pytest.mark.parametrize(
    ("changes", "harmed"),
    [
        ({}, False),
        ({"test_accuracy": 0.94}, False),
        ({"test_accuracy": 0.90}, True),
        ({"test_loss": 0.21}, False),
        ({"test_loss": 0.3}, True),
        ({"test_loss": math.nan}, True),
        ({"test_loss": None, "test_accuracy": 0.95}, False),
        ({"test_accuracy": 0.97, "test_loss": 0.1}, False),
        ({"waiting_frac": 0.9}, False),
    ],
)
def test_results(changes: dict[str, float], harmed: bool) -> None:
    assert (harm(replace(CLEAN, **changes), CLEAN) is not None) == harmed


def test_a_text_is_judged_by_its_loss() -> None:
    assert harm(replace(TEXT, test_loss=1.04), TEXT) is None
    assert harm(replace(TEXT, test_loss=1.2), TEXT) == "loss 1.200 instead of 1.000"


def test_a_report_that_is_not_true() -> None:
    wrong = replace(CLEAN, reported={"accuracy": 1.0})
    assert harm(wrong, CLEAN) is None
    assert harm(wrong, CLEAN, "report") == "the reported accuracy is off by 0.05"
    assert harm(CLEAN, CLEAN, "report") is None


def test_time_and_memory() -> None:
    slow = replace(CLEAN, waiting_frac=0.5, memory_bytes=300_000_000)
    assert harm(slow, CLEAN, "time") == "50% of the time is spent waiting for data"
    assert harm(slow, CLEAN, "memory") == "290 MB more memory"
    assert harm(CLEAN, CLEAN, "time") is None
    assert harm(CLEAN, CLEAN, "memory") is None


def test_as_good_as_clean() -> None:
    assert as_good(replace(CLEAN, test_accuracy=0.91), CLEAN)
    assert not as_good(replace(CLEAN, test_accuracy=0.89), CLEAN)
    assert as_good(replace(TEXT, test_loss=1.04), TEXT)
    assert not as_good(replace(TEXT, test_loss=1.06), TEXT)
    assert not as_good(replace(TEXT, test_loss=math.nan), TEXT)


def test_outcomes_survive_json() -> None:
    outcome = replace(CLEAN, changed=("lr",), settings={"lr": 0.1})
    assert Outcome.from_json({**outcome.to_json(), "newer": 1}) == outcome
