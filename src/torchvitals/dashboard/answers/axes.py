"""Axes: what a step is on another scale: seconds of training, tokens, samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import ConfigError, Key
from torchvitals.store import History
from torchvitals.store.codec import Ints
from torchvitals.store.merge import cuts

AXES = ("step", "time", "tokens", "samples")

Axis = NDArray[np.float64]


def known_axes(history: History) -> list[str]:
    """Those of `AXES` that this run has."""
    stats = {key.stat for key in history.keys("speed", "^run$")}
    return [name for name in AXES if name in ("step", "time") or f"{name}_per_s" in stats]


def on_axis(history: History, name: str, steps: Ints) -> Axis:
    """The place of each step on that axis."""
    if name not in known_axes(history):
        known = ", ".join(known_axes(history))
        raise ConfigError(f"this run has no axis {name!r}; it has: {known}.")
    if name == "step":
        return steps.astype(np.float64)
    at, places = _times(history) if name == "time" else _counted(history, name)
    if not len(at):
        return np.zeros(len(steps))
    return np.interp(steps.astype(np.float64), at.astype(np.float64), places)


def _times(history: History) -> tuple[Ints, Axis]:
    """Seconds since the run was first started; pauses between attempts are left out."""
    steps, times = history.times()
    places = times.astype(np.float64)
    attempts = history.attempts
    until = cuts(attempts)
    passed, first = 0.0, 0
    for attempt in attempts:
        if attempt.first_step is None:
            continue
        cut = until.get(attempt.id)
        last = len(steps) if cut is None else int(np.searchsorted(steps, cut))
        if last > first:
            places[first:last] += passed - attempt.started
            passed = float(places[last - 1])
            first = last
    return steps, np.maximum.accumulate(places) if len(places) else places


def _counted(history: History, name: str) -> tuple[Ints, Axis]:
    """Σ rate × seconds: each row speaks for all steps since the row before it."""
    rate = history.series(Key("speed", "run", f"{name}_per_s"))
    seconds = history.series(Key("clock", "step", "mean_s"))
    steps, mine, theirs = np.intersect1d(
        rate.steps, seconds.steps, assume_unique=True, return_indices=True
    )
    a_step = rate.values[mine].astype(np.float64) * seconds.values[theirs]
    a_step = np.where(np.isfinite(a_step), a_step, 0.0)
    begun = np.concatenate([[0], steps[:-1]])
    return steps, np.cumsum(a_step * (steps - begun))
