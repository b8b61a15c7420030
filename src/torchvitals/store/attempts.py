"""Attempts: a run that is started again goes on in the same file, as its next attempt.

A newer attempt supersedes the older ones from its first stored step on: resuming from the
checkpoint of step 500 replaces what was measured after it. The merged view is therefore a list of
step ranges, one an attempt, and its steps only go up.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchvitals.store.lock import is_locked

HEARTBEAT_STALE_S: Final = 60.0
"""A running attempt on another machine that was silent for so long is taken for dead."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the training script."""

    id: int
    started: float
    ended: float | None
    status: str
    """running, finished, failed, or died: killed, found out when the next attempt started."""
    pid: int
    host: str
    heartbeat: float
    first_step: int | None
    """None while it has stored no row."""
    last_step: int | None


def read_attempts(connection: sqlite3.Connection) -> list[Attempt]:
    """All attempts, oldest first."""
    spans = step_spans(connection)
    rows = connection.execute(
        "SELECT id, started, ended, status, pid, host, heartbeat FROM attempts ORDER BY id"
    )
    return [Attempt(*row, *spans.get(row[0], (None, None))) for row in rows]


def step_spans(connection: sqlite3.Connection) -> dict[int, tuple[int, int]]:
    """First and last stored step of each attempt that stored any."""
    return {
        attempt: (low, high)
        for attempt, low, high in connection.execute(
            "SELECT attempt, min(low), max(high) FROM ("
            "SELECT attempt, min(low_step) AS low, max(high_step) AS high FROM blocks GROUP BY 1 "
            "UNION ALL SELECT attempt, min(step), max(step) FROM rows GROUP BY 1) GROUP BY 1"
        )
    }


def last_step(connection: sqlite3.Connection) -> int | None:
    """The last step of the merged view."""
    spans = step_spans(connection)
    return spans[max(spans)][1] if spans else None


def visible_until(spans: dict[int, tuple[int, int]]) -> dict[int, int | None]:
    """For each attempt, the step at which a newer one takes over; None when none does."""
    until: dict[int, int | None] = {}
    cut: int | None = None
    for attempt in sorted(spans, reverse=True):
        until[attempt] = cut
        cut = spans[attempt][0] if cut is None else min(cut, spans[attempt][0])
    return until


def life(attempt: Attempt, folder: Path, host: str, now: float) -> str:
    """The status of the last attempt as seen from here: running, finished, failed or died."""
    if attempt.status != "running":
        return attempt.status
    locked = is_locked(folder) if attempt.host == host else None
    if locked is None:
        locked = now - attempt.heartbeat < HEARTBEAT_STALE_S
    return "running" if locked else "died"
