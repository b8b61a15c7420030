"""`listing`: the runs below a folder, a line each. A file that can't be read has its problem."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchvitals.record import SCALAR, Key, VitalsError
from torchvitals.store import History, list_runs, open_run
from torchvitals.views.progress import done_step
from torchvitals.views.sparkline import drawn

SPARK_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One run; `problem` is None when its file reads well."""

    name: str
    """Path from the listed folder; the folder itself is ``.``."""
    path: Path
    status: str
    """running, finished, failed, died; broken when the file can't be read."""
    steps: int | None = None
    loss: float | None = None
    loss_spark: str = ""
    started: float | None = None
    age_s: float | None = None
    duration_s: float | None = None
    size_bytes: int = 0
    problem: str | None = None
    finding: str | None = None
    """The worst that the diagnosis beside the training found and is not over."""


def listing(
    folder: str | os.PathLike[str], *, clock: Callable[[], float] = time.time
) -> list[RunLine]:
    """All runs below the folder, the newest last; broken ones at the end."""
    lines = []
    for run in list_runs(folder):
        name = os.path.relpath(run.path, folder)
        if run.problem is not None:
            lines.append(_broken(name, run.path, run.problem))
            continue
        try:
            with open_run(run.path) as history:
                lines.append(_line(history, name, run.path, clock()))
        except VitalsError as error:
            lines.append(_broken(name, run.path, str(error)))
    return sorted(lines, key=lambda line: (line.problem is not None, line.started or 0.0))


def loss_key(history: History) -> Key | None:
    """The scalar ``loss``, or the first one whose name has loss in it."""
    scalars = history.keys(SCALAR)
    named = [key for key in scalars if "loss" in key.site.lower()]
    return next((key for key in scalars if key.site == "loss"), named[0] if named else None)


def took(history: History, now: float) -> float | None:
    """Seconds all attempts together ran."""
    attempts = history.attempts
    if not attempts:
        return None
    alive = history.status == "running"
    total = sum(
        (one.ended if one.ended is not None else one.heartbeat) - one.started for one in attempts
    )
    return total + (now - attempts[-1].heartbeat if alive else 0.0)


def disk_size(path: Path) -> int:
    """Bytes of the run's folder: the file, and its journal while it is written."""
    total = 0
    for file in path.glob("run.*"):
        try:
            total += file.stat().st_size
        except OSError:  # a journal that went away just now
            continue
    return total


def _line(history: History, name: str, path: Path, now: float) -> RunLine:
    attempts = history.attempts
    key = loss_key(history)
    loss = history.series(key).values.tolist() if key is not None else []
    started = attempts[0].started if attempts else None
    return RunLine(
        name=name,
        path=path,
        status=history.status,
        steps=done_step(history),
        loss=loss[-1] if loss else None,
        loss_spark=drawn(history, key, SPARK_WIDTH) if key is not None else "",
        started=started,
        age_s=None if started is None else now - started,
        duration_s=took(history, now),
        size_bytes=disk_size(path),
        finding=next((one.name for one in history.findings() if one.is_open), None),
    )


def _broken(name: str, path: Path, problem: str) -> RunLine:
    return RunLine(
        name=name, path=path, status="broken", size_bytes=disk_size(path), problem=problem
    )
