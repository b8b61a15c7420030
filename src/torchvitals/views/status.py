"""`status_of`: the essence of a run under way, cheap enough to be asked for every second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from torchvitals.record import Key
from torchvitals.store import History
from torchvitals.views.columns import Trend, trend
from torchvitals.views.layers import SPARK_WIDTH
from torchvitals.views.listing import loss_key, took
from torchvitals.views.pace import Pace, pace_of
from torchvitals.views.progress import ticked
from torchvitals.views.summary import event_lines

COUNTS = {
    "frozen": Key("summary", "update_ratio", "num_frozen"),
    "vanishing": Key("summary", "gradient_norm", "num_vanishing"),
    "exploding": Key("summary", "gradient_norm", "num_exploding"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """Plain data; times are seconds."""

    name: str
    path: Path
    status: str
    """running, finished, failed or died."""
    every: int | None
    duration_s: float | None
    loss: Trend | None
    learning_rate: Trend | None
    layers: dict[str, int]
    """How many are frozen, vanishing, exploding; empty when none was measured."""
    pace: Pace
    events: list[str]
    read_at: float
    """When this was so, in seconds since the epoch."""

    @property
    def ended_badly(self) -> bool:
        """It failed, or was killed."""
        return self.status in ("failed", "died")


def status_of(
    history: History, *, spark_width: int = SPARK_WIDTH, clock: Callable[[], float] = time.time
) -> RunStatus:
    """The run as it is now."""
    info, now = history.info, clock()
    keys = set(history.keys())

    def of(key: Key | None) -> Trend | None:
        there = key is not None and key in keys
        return trend(history, key, spark_width=spark_width) if key is not None and there else None

    layers = {}
    for word, key in COUNTS.items():
        if key in keys:
            values = history.series(key).values
            if len(values) and np.isfinite(values[-1]):
                layers[word] = int(values[-1])
    rates = history.keys("optimizer", stat="lr")
    every = info.watch.get("every")
    return RunStatus(
        name=info.name or history.path.parent.name,
        path=history.path.parent,
        status=history.status,
        every=every if isinstance(every, int) else None,
        duration_s=took(history, now),
        loss=of(loss_key(history)),
        learning_rate=of(rates[0] if rates else None),
        layers=layers,
        pace=pace_of(history, now=now, spark_width=spark_width),
        events=event_lines(history),
        read_at=now,
    )


def later(run: RunStatus, now: float) -> RunStatus:
    """The same at another time, without looking at the run: only the clocks go on."""
    if run.status != "running":
        return run
    passed = now - run.read_at
    return replace(
        run,
        duration_s=None if run.duration_s is None else run.duration_s + passed,
        pace=replace(run.pace, progress=ticked(run.pace.progress, now)),
        read_at=now,
    )
