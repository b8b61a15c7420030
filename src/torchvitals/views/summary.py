"""`summarize`: a run at a glance: what it is, how it went, what stands out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from torchvitals.diagnosis.telling import one_line
from torchvitals.record import ROOT, SCALAR, Key
from torchvitals.store import History
from torchvitals.views.columns import Trend, trend
from torchvitals.views.layers import SPARK_WIDTH
from torchvitals.views.listing import disk_size, loss_key, took
from torchvitals.views.own_metrics import from_module_monitor, num_measured
from torchvitals.views.pace import Pace, pace_of
from torchvitals.views.progress import done_step

BAD_STATS = ("num_nan", "num_posinf", "num_neginf")
BAD_POINTS = 256
ROUTINE = frozenset({"epoch", "evaluation", "finding", "flops"})
"""Kinds of events that are no news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLine:
    """A model's type and size."""

    name: str
    type: str
    num_parameters: int
    num_tensors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFinite:
    """Tensors of one kind in which a NaN or Inf was seen at any step."""

    kind: str
    num_sites: int
    first_step: int
    first_sites: list[str]
    """Where it was at that step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Plain data; times are seconds since the epoch."""

    name: str
    path: Path
    status: str
    last_step: int | None
    at_step: int | None
    """What is said is said as of this step; None: of the last one."""
    num_measured: int
    """Steps at which tensors were measured."""
    num_columns: int
    num_attempts: int
    started: float | None
    age_s: float | None
    duration_s: float | None
    size_bytes: int
    models: list[ModelLine]
    device: dict[str, Any]
    command: list[str]
    git: dict[str, Any]
    watch: dict[str, Any]
    loss: Trend | None
    scalars: list[Trend]
    """The other numbers the user logged."""
    gradient_norm: Trend | None
    """Of all gradients together, before clipping."""
    clip_ratio: Trend | None
    """Norm / limit; above 1 the gradients were scaled down."""
    update_ratio: Trend | None
    """Median of the layers' ‖Δw‖ / ‖w‖."""
    learning_rate: Trend | None
    """Of the first parameter group."""
    num_vanishing: int | None
    num_exploding: int | None
    num_frozen: int | None
    not_finite: list[NotFinite]
    overhead_s: float | None
    """Seconds a measured step spent in the monitor, median."""
    overhead_frac: float | None
    """Share of the run's time, first step to last."""
    events: list[str]
    """Without those that `pace` tells: epochs, and the FLOPs of a step."""
    pace: Pace
    guard: dict[str, int]
    """What the guard did how often; empty where there was none or nothing to do."""
    findings: list[str]
    """What the diagnosis beside the training found and is not over, the worst first."""


def summarize(
    history: History,
    *,
    step: int | None = None,
    spark_width: int = SPARK_WIDTH,
    clock: Callable[[], float] = time.time,
) -> RunSummary:
    """The run as of `step` (None: its end)."""
    info, attempts, now = history.info, history.attempts, clock()
    stop = None if step is None else step + 1
    keys = set(history.keys())

    def of(key: Key | None) -> Trend | None:
        if key is None or key not in keys:
            return None
        return trend(history, key, stop=stop, spark_width=spark_width)

    def counted(site: str, stat: str) -> int | None:
        found = of(Key("summary", site, stat))
        return None if found is None or not np.isfinite(found.last) else int(found.last)

    main = loss_key(history)
    others = [of(key) for key in history.keys(SCALAR) if key != main]
    rates = history.keys("optimizer", stat="lr")
    overhead_s, overhead_frac = monitor_share(history, stop=stop)
    started = attempts[0].started if attempts else None
    return RunSummary(
        name=info.name or history.path.parent.name,
        path=history.path.parent,
        status=history.status,
        last_step=done_step(history),
        at_step=step,
        num_measured=num_measured(history),
        num_columns=len(keys),
        num_attempts=len(attempts),
        started=started,
        age_s=None if started is None else now - started,
        duration_s=took(history, now),
        size_bytes=disk_size(history.path.parent),
        models=[
            ModelLine(
                name=model.name,
                type=model.modules[0].type if model.modules else "",
                num_parameters=sum(prod(p.shape) for p in model.parameters),
                num_tensors=len(model.parameters),
            )
            for model in info.models
        ],
        device=info.device,
        command=list(info.command),
        git=info.git,
        watch=info.watch,
        loss=of(main),
        scalars=[one for one in others if one is not None],
        gradient_norm=of(Key("gradient", ROOT, "norm")),
        clip_ratio=of(Key("gradient", ROOT, "clip_ratio")),
        update_ratio=of(Key("summary", "update_ratio", "median")),
        learning_rate=of(rates[0] if rates else None),
        num_vanishing=counted("gradient_norm", "num_vanishing"),
        num_exploding=counted("gradient_norm", "num_exploding"),
        num_frozen=counted("update_ratio", "num_frozen"),
        not_finite=not_finite(history, stop=stop),
        overhead_s=overhead_s,
        overhead_frac=overhead_frac,
        events=event_lines(history, stop=stop),
        guard=guard_counts(history, stop=stop),
        pace=pace_of(history, stop=stop, now=now, spark_width=spark_width),
        findings=finding_lines(history, stop=stop),
    )


def guard_counts(history: History, *, stop: int | None = None) -> dict[str, int]:
    """Decisions of the guard by what was done, and the steps a GradScaler skipped."""
    counts: dict[str, int] = {}
    for event in history.events():
        if stop is None or event.step < stop:
            if event.kind == "guard":
                done = str(event.data.get("done", ""))
                counts[done] = counts.get(done, 0) + 1
            elif event.kind == "scaler":
                counts["scaler"] = counts.get("scaler", 0) + 1
    return counts


def finding_lines(history: History, *, stop: int | None = None) -> list[str]:
    """Open findings as they were stored: severity, name, place, fix."""
    return [
        f"{one.severity.value}: {one_line(one)}"
        for one in history.findings()
        if one.is_open and (stop is None or one.first_step < stop)
    ]


def event_lines(history: History, *, stop: int | None = None) -> list[str]:
    """What happened, but for what happens in every run."""
    return [
        f"step {event.step}: {event.kind}: {event.text}"
        for event in history.events()
        if event.kind not in ROUTINE and (stop is None or event.step < stop)
    ]


def monitor_share(
    history: History, *, stop: int | None = None
) -> tuple[float | None, float | None]:
    """Seconds a measured step spent in the monitor (median), and their share of all time."""
    key = Key("summary", "monitor", "overhead_s")
    if key not in history.keys("summary", "^monitor$"):
        return None, None
    steps, spent = history.series(key, stop=stop)
    if not len(steps):
        return None, None
    # The first step has no beginning of its own: time counts from its end on.
    rows = history.times(attempt=history.attempts[-1].id)
    rows_in = rows.times if stop is None else rows.times[rows.steps < stop]
    inside = spent[steps > rows.steps[0]]
    length = float(rows_in[-1] - rows_in[0]) if len(rows_in) else 0.0
    share = float(inside.sum()) / length if length > 0 and len(inside) else None
    return float(np.median(spent)), share


def not_finite(history: History, *, stop: int | None = None) -> list[NotFinite]:
    """Each kind in which some tensor had a NaN or Inf at some step."""
    found = []
    for kind in ("activation", "gradient", "update", "parameter"):
        sites: dict[str, list[str]] = {}
        for stat in BAD_STATS:
            drawn = history.matrix(kind, stat, stop=stop, points=BAD_POINTS)
            for at in np.flatnonzero((drawn.values > 0).any(axis=0)).tolist():
                sites.setdefault(drawn.sites[at], []).append(stat)
        first: dict[str, int] = {}
        for site, stats in sites.items():
            for stat in stats:
                steps, values = history.series(Key(kind, site, stat), stop=stop)
                begin = int(steps[int(np.argmax(values > 0))])
                first[site] = min(begin, first.get(site, begin))
        if from_module_monitor(history.info):
            _add_bad_metrics(history, kind, stop, first)
        if first:
            begin = min(first.values())
            found.append(
                NotFinite(
                    kind=kind,
                    num_sites=len(first),
                    first_step=begin,
                    first_sites=[site for site, step in first.items() if step == begin],
                )
            )
    return found


def _add_bad_metrics(history: History, kind: str, stop: int | None, first: dict[str, int]) -> None:
    """Where nobody counted NaNs and Infs, a metric that is one tells of them."""
    for key in history.keys(kind):
        if history.envelope(key, points=BAD_POINTS, stop=stop).bad.any():
            steps, values = history.series(key, stop=stop)
            begin = int(steps[int(np.argmin(np.isfinite(values)))])
            first[key.site] = min(begin, first.get(key.site, begin))
