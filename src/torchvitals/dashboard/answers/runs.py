"""``api/runs``: all runs below the folder. A line is made anew when its file has changed."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

from torchvitals.dashboard.findings import known_findings
from torchvitals.dashboard.frames import listed
from torchvitals.dashboard.question import version_of
from torchvitals.dashboard.shelf import Shelf
from torchvitals.record import VitalsError
from torchvitals.store import History
from torchvitals.store.connect import FILE_NAME
from torchvitals.views.listing import disk_size, loss_key, took

SPARK_POINTS: Final = 60
CHECK_S: Final = 10.0
"""A run that is running may have died without a word: it is asked so often."""


class RunList:
    """The lines, kept. May be used from several threads."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._mutex = threading.Lock()
        self._lines: dict[str, tuple[tuple[Any, ...], float, dict[str, Any]]] = {}

    def answer(self) -> dict[str, Any]:
        """The newest first, broken ones at the end."""
        with self._mutex:
            places = self._shelf.runs()
            lines = [self._line(ident, place) for ident, place in places.items()]
            for ident in self._lines.keys() - places.keys():
                del self._lines[ident]
        lines.sort(key=lambda line: (line["status"] == "broken", -(line["started"] or 0.0)))
        return {
            "folder": str(self._shelf.root),
            "version": digest(*(f"{line['id']}{line['version']}" for line in lines)),
            "runs": lines,
        }

    def statuses(self) -> dict[str, str]:
        """Id → status of all runs; cheap when little has changed."""
        return {line["id"]: line["status"] for line in self.answer()["runs"]}

    def _line(self, ident: str, place: Path) -> dict[str, Any]:
        signature, now = _signature(place), time.monotonic()
        known = self._lines.get(ident)
        if known is not None and known[0] == signature:
            asleep = known[2]["status"] != "running" or now - known[1] < CHECK_S
            if asleep:
                return known[2]
        name = self._shelf.name(place)
        try:
            with self._shelf.reading(ident) as history:
                made = line(history, ident, name)
        except VitalsError as error:
            made = _broken(ident, name, str(error), disk_size(place))
        self._lines[ident] = (signature, now, made)
        return made


def line(history: History, ident: str, name: str) -> dict[str, Any]:
    """What the list says of a run."""
    info, attempts = history.info, history.attempts
    total = info.watch.get("total_steps")
    found = known_findings(history)
    still = [one for one in found or [] if one["state"] == "open"]
    worst = still[0] if still else None
    return {
        "id": ident,
        "name": name,
        "title": info.name or history.path.parent.name,
        "status": history.status,
        "problem": None,
        "version": version_of(history),
        "last_step": history.last_step,
        "total_steps": total if isinstance(total, int) else None,
        "started": attempts[0].started if attempts else None,
        "ended": attempts[-1].ended if attempts else None,
        "duration_s": took(history, time.time()),
        "size_bytes": disk_size(history.path.parent),
        "loss": _loss(history),
        "num_findings": None if found is None else len(still),
        "worst": None
        if worst is None
        else {
            "id": worst["id"],
            "name": worst["name"],
            "severity": worst["severity"],
            "text": worst["explanation"],
            "sites": worst["sites"][:5],
        },
    }


def _loss(history: History) -> dict[str, Any] | None:
    key = loss_key(history)
    if key is None:
        return None
    found = history.envelope(key, SPARK_POINTS)
    arrays = ("steps", "low", "high", "last", "flags")
    spark = {name: listed(getattr(found, name)) for name in arrays}
    return {"key": str(key), "last": spark["last"][-1] if spark["last"] else None, "spark": spark}


def _broken(ident: str, name: str, problem: str, size: int) -> dict[str, Any]:
    return {
        "id": ident, "name": name, "title": name, "status": "broken", "problem": problem,
        "version": digest(problem), "last_step": None, "total_steps": None, "started": None,
        "ended": None, "duration_s": None, "size_bytes": size, "loss": None,
        "num_findings": None, "worst": None,
    }  # fmt: skip


def _signature(place: Path) -> tuple[Any, ...]:
    """What changes when a run is written to."""
    seen: list[Any] = []
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        try:
            status = os.stat(place / name)
        except OSError:
            seen.append(None)
        else:
            seen += [status.st_ino, status.st_size, status.st_mtime_ns]
    return tuple(seen)


def digest(*texts: str) -> str:
    """A short name of these texts."""
    return hashlib.blake2s("\n".join(texts).encode("utf-8", "replace"), digest_size=8).hexdigest()
