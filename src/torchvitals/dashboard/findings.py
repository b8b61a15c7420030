"""Findings of a run: as they were stored while it was recorded, or by diagnosing it now.

A stored one is the newest of the events of kind ``finding`` with its id:
``{"id": …, "state": "opened" | "updated" | "resolved", "finding": Finding.to_json()}``.

That a run hangs or died it could not store itself: the rule `stalled` is asked anew.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from torchvitals.record import Finding, Severity
from torchvitals.store import History

STORED, COMPUTED, NONE = "stored", "computed", "none"
STALLED: Final = "stalled"

AGAIN_S: Final = 10.0
"""A run that grows is not diagnosed more often than this."""
QUIET_S: Final = 10.0
"""A run that stored something so lately is not asked whether it hangs."""
MOST_KEPT: Final = 64

_mutex = threading.Lock()
_kept: OrderedDict[str, tuple[str, float, list[dict[str, Any]]]] = OrderedDict()
"""Path → the stamp that was diagnosed, when, and what was found."""
_quiet: OrderedDict[str, tuple[str, float]] = OrderedDict()
"""Path → the last stamp that was seen, and since when."""


def findings_of(history: History) -> list[dict[str, Any]]:
    """The newest state of each finding, open ones first, the worst first."""
    stored = _stored(history)
    found = stored if stored is not None else _diagnosed(history) or []
    return _with_life(history, found)


def source_of(history: History) -> str:
    """Where `findings_of` has them from."""
    if history.events("finding"):
        return STORED
    return COMPUTED if _diagnose() is not None else NONE


def known_findings(history: History) -> list[dict[str, Any]] | None:
    """The same without a diagnosis of its own; None when that would be needed."""
    found = _stored(history)
    if found is None:
        with _mutex:
            kept = _kept.get(str(history.path))
        found = None if kept is None else kept[2]
    return None if found is None else _with_life(history, found)


def hangs(history: History, stamp: str) -> bool:
    """Whether a running run has been silent for too long. Costs nothing while it stores."""
    place, now = str(history.path), time.monotonic()
    with _mutex:
        known, since = _quiet.get(place, ("", now))
        if known != stamp:
            since = now
        _quiet[place] = (stamp, since)
        _quiet.move_to_end(place)
        while len(_quiet) > MOST_KEPT:
            _quiet.popitem(last=False)
    pulse = _part("pulse") if now - since >= QUIET_S else None
    return pulse is not None and pulse(history) is not None


def _stored(history: History) -> list[dict[str, Any]] | None:
    """None when the run has no events of findings."""
    newest: dict[str, dict[str, Any]] = {}
    events = history.events("finding")
    for event in events:
        data = event.data
        try:
            finding = Finding.from_json(data["finding"])
            ident = str(data["id"])
        except (KeyError, TypeError, ValueError, AttributeError):
            continue  # of another version, or somebody's own event of that name
        over = data.get("state") == "resolved" or not finding.is_open
        newest[ident] = _entry(finding, ident, over=over)
    return _ranked(newest.values()) if events else None


def _diagnosed(history: History) -> list[dict[str, Any]] | None:
    diagnose = _diagnose()
    if diagnose is None:
        return None
    place, stamp, now = str(history.path), history.stamp(), time.monotonic()
    with _mutex:
        kept = _kept.get(place)
    if kept is not None and (kept[0] == stamp or now - kept[1] < AGAIN_S):
        return kept[2]
    found = _ranked(
        _entry(finding, _ident(finding), over=not finding.is_open)
        for finding in diagnose(history).findings
    )
    with _mutex:
        _kept[place] = (stamp, time.monotonic(), found)
        _kept.move_to_end(place)
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return found


def _with_life(history: History, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those, and whether the run hangs or died now, whatever was said of that before."""
    pulse = _part("pulse")
    if pulse is None or history.status not in ("running", "died"):
        return found
    one = pulse(history)
    others = [entry for entry in found if entry["name"] != STALLED]
    if one is None:
        return others
    return _ranked([*others, _entry(one, _ident(one), over=False)])


def _diagnose() -> Any:
    """`torchvitals.diagnosis.diagnose`, or None where there is no such room."""
    return _part("diagnose")


def _part(name: str) -> Any:
    """That of `torchvitals.diagnosis`, or None where there is no such room."""
    try:
        room = import_module("torchvitals.diagnosis")
    except ModuleNotFoundError as error:
        if error.name != "torchvitals.diagnosis":
            raise
        return None
    return getattr(room, name, None)


def _entry(finding: Finding, ident: str, *, over: bool) -> dict[str, Any]:
    return {"id": ident, "state": "resolved" if over else "open", **finding.to_json()}


def _ident(finding: Finding) -> str:
    return f"{finding.name}:{finding.sites[0] if finding.sites else ''}:{finding.first_step}"


def _ranked(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    def order(entry: dict[str, Any]) -> tuple[bool, int, float, int]:
        rank = Severity(entry["severity"]).rank
        return (entry["state"] != "open", -rank, -entry["confidence"], entry["first_step"])

    return sorted(entries, key=order)
