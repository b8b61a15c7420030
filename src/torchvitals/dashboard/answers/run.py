"""``api/runs/ID``: what a run is made of, and which columns it has."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from torchvitals.dashboard.answers.axes import known_axes
from torchvitals.dashboard.answers.depth import in_depth_order
from torchvitals.dashboard.question import Body, Question
from torchvitals.record import Key, RunInfo
from torchvitals.store import History
from torchvitals.views.limits import EXPLODING, RATIO_HIGH, RATIO_LOW, VANISHING
from torchvitals.views.listing import loss_key, took
from torchvitals.views.progress import progress_of

HEALTHY: Final = {"update/ratio": [RATIO_LOW, RATIO_HIGH], "gradient/norm": [VANISHING, EXPLODING]}
"""Bands to draw behind a statistic of single layers."""


def run(question: Question) -> Body:
    """Everything that hardly changes while a run goes on."""
    history, now = question.history, time.time()
    info, attempts = history.info, history.attempts
    steps = history.steps()
    key = loss_key(history)
    return question.json(
        {
            "id": question.run,
            "title": info.name or history.path.parent.name,
            "status": history.status,
            "problem": None,
            "columns_version": columns_version(history),
            "first_step": int(steps[0]) if len(steps) else None,
            "last_step": history.last_step,
            "total_steps": progress_of(history, now=now).total_steps,
            "num_steps": len(steps),
            "started": attempts[0].started if attempts else None,
            "ended": attempts[-1].ended if attempts else None,
            "duration_s": took(history, now),
            "attempts": [
                {name: value for name, value in asdict(attempt).items() if name != "pid"}
                for attempt in attempts
            ],
            "axes": known_axes(history),
            **_described(info),
            "columns": columns(history.keys(), history.histogram_sites(), info),
            "healthy": HEALTHY,
            "loss_key": None if key is None else str(key),
        }
    )


def columns_version(history: History) -> str:
    """Changes when a column joins or another attempt begins."""
    return f"{len(history.keys())}.{len(history.histogram_sites())}.{len(history.attempts)}"


def columns(
    keys: Iterable[Key], histograms: Iterable[tuple[str, str]], info: RunInfo
) -> dict[str, Any]:
    """Kind → its sites in depth order, and which of them have which stat, which have histograms."""
    kinds: dict[str, dict[str, set[str]]] = {}
    sites: dict[str, dict[str, None]] = {}
    with_bins: dict[str, set[str]] = {}
    for key in keys:
        kinds.setdefault(key.kind, {}).setdefault(key.stat, set()).add(key.site)
        sites.setdefault(key.kind, {})[key.site] = None
    for kind, site in histograms:
        with_bins.setdefault(kind, set()).add(site)
        sites.setdefault(kind, {})[site] = None
    found = {}
    for kind, names in sites.items():
        ordered = in_depth_order(names, info)
        stats = kinds.get(kind, {})

        def places(of: set[str], ordered: list[str] = ordered) -> list[int]:
            return [at for at, site in enumerate(ordered) if site in of]

        both = stats.get("min", set()) & stats.get("max", set())
        bins = with_bins.get(kind, set())
        computed = {"absmax": places(both)} if both and "absmax" not in stats else {}
        if bins and "p50" not in stats:
            computed["p50"] = places(bins)
        found[kind] = {
            "sites": ordered,
            "stats": {stat: places(of) for stat, of in stats.items()},
            "computed": computed,
            "histograms": places(bins),
        }
    return found


def _described(info: RunInfo) -> dict[str, Any]:
    plain = info.to_json()
    fields = (
        "config", "watch", "command", "directory", "git", "packages", "device", "models", "groups",
    )  # fmt: skip
    return {name: plain[name] for name in fields}
