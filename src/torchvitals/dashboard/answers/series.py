"""``series``: columns as envelopes. ``overview``: those a first look needs, in one answer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from torchvitals.dashboard.answers.axes import AXES, on_axis
from torchvitals.dashboard.question import Body, Question
from torchvitals.record import ROOT, SCALAR, ConfigError, Key, UnknownKey
from torchvitals.store import History
from torchvitals.store.answers import Envelope
from torchvitals.views.status import status_of

MOST_KEYS: Final = 100
MOST_OVERVIEW: Final = 200
SERIES_ARGUMENTS: Final = ("key", "points", "start", "stop", "x", "format")
OVERVIEW_ARGUMENTS: Final = ("points", "start", "stop", "x", "format")

OVERVIEW_KINDS: Final = (SCALAR, "eval", "summary", "clock", "speed", "machine", "noise", "epoch")


def series(question: Question) -> Body:
    """One or several columns, at most `points` buckets each."""
    asked = question.asked
    keys = asked.several("key", MOST_KEYS)
    if not keys:
        raise ConfigError(
            "key= is missing: a column's text, such as loss or gradient/fc.weight/rms."
        )
    listed, arrays = _envelopes(question, keys, asked.points(1000))
    if len(keys) == 1 and "error" in listed[0]:
        raise UnknownKey(listed[0]["error"])
    return question.frame({"x": asked.choice("x", AXES), "series": listed}, arrays)


def overview(question: Question) -> Body:
    """What an overview draws, and the run's status in numbers."""
    keys = overview_keys(question.history)
    listed, arrays = _envelopes(question, keys, question.asked.points(300))
    header = {
        "x": question.asked.choice("x", AXES),
        "series": listed,
        "status": status_numbers(question.history),
    }
    return question.frame(header, arrays)


def overview_keys(history: History) -> list[Key]:
    """Columns of the run as a whole, not of its layers."""
    found = [key for kind in OVERVIEW_KINDS for key in history.keys(kind)]
    found += history.keys("optimizer", stat="lr")
    found += [key for key in history.keys("gradient", stat="norm") if key.site == ROOT]
    return found[:MOST_OVERVIEW]


def status_numbers(history: History) -> dict[str, Any]:
    """How the run is doing, flat."""
    run = status_of(history, spark_width=1, clock=time.time)
    pace, progress = run.pace, run.pace.progress
    return {
        "status": run.status, "step": progress.step, "total_steps": progress.total_steps,
        "frac": progress.frac, "eta_s": progress.eta_s, "silent_s": progress.silent_s,
        "duration_s": run.duration_s, "epoch": progress.epoch, "num_epochs": progress.num_epochs,
        "every": run.every,
        "step_s": pace.step_s if pace.step_s is not None else progress.step_s,
        "steps_per_s": pace.steps_per_s, "samples_per_s": pace.samples_per_s,
        "tokens_per_s": pace.tokens_per_s, "flops_per_s": pace.flops_per_s, "mfu": pace.mfu,
        "shares": pace.shares, "data_frac": pace.data_frac, "memory": pace.memory,
        "schedule": pace.schedule, "noise_scale": pace.noise_scale,
        "batch_size": pace.batch_size, "layers": run.layers,
    }  # fmt: skip


def _envelopes(
    question: Question, keys: Iterable[Key | str], points: int
) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    asked, history = question.asked, question.history
    start, stop, x = asked.integer("start"), asked.integer("stop"), asked.choice("x", AXES)
    listed: list[dict[str, Any]] = []
    arrays: dict[str, NDArray[Any]] = {}
    for number, key in enumerate(keys):
        try:
            found = history.envelope(key, points, start=start, stop=stop)
        except UnknownKey as error:
            listed.append({"key": str(key), "error": str(error)})
            continue
        listed.append({"key": str(key), "arrays": str(number)})
        arrays |= {f"{number}.{name}": array for name, array in _arrays(found).items()}
        if x != "step":
            arrays[f"{number}.x"] = on_axis(history, x, found.steps)
    return listed, arrays


def _arrays(found: Envelope) -> dict[str, NDArray[Any]]:
    return {
        "steps": found.steps.astype(np.float64),
        "low": found.low,
        "high": found.high,
        "last": found.last,
        "flags": found.flags,
        "count": found.count.astype(np.float64),
    }
