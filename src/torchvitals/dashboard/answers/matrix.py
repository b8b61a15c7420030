"""``matrix``: one statistic, sites × time. ``profile``: the same at single steps, over depth."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from torchvitals.dashboard.answers.axes import AXES, on_axis
from torchvitals.dashboard.answers.depth import in_depth_order, is_under
from torchvitals.dashboard.question import Body, Question
from torchvitals.record import UnknownKey
from torchvitals.record.row import Floats, is_missing
from torchvitals.store import History
from torchvitals.store.answers import Buckets
from torchvitals.store.questions import closest
from torchvitals.views.layers import measured_step

MATRIX_ARGUMENTS: Final = (
    "kind", "stat", "points", "start", "stop", "under", "site", "show", "x", "format",
)  # fmt: skip
PROFILE_ARGUMENTS: Final = ("kind", "stat", "step", "under", "format")

MOST_SITES: Final = 500
MOST_STEPS: Final = 20
MOST_VALUES: Final = 1_000_000
"""Buckets shorter than a pyramid's cell are made only where no more values than this are read."""

NOT_MEASURED: Final = np.uint8(128)


def matrix(question: Question) -> Body:
    """The heatmap of a statistic."""
    asked, history = question.asked, question.history
    kind, stat = asked.text("kind"), asked.text("stat")
    show = asked.choice("show", ("peak", "low", "high", "last"))
    chosen = _chosen(question, kind)
    found = history.buckets(
        kind,
        stat,
        asked.points(500),
        sites=chosen,
        start=asked.integer("start"),
        stop=asked.integer("stop"),
        most_values=MOST_VALUES,
    )
    if not found.sites:
        raise _unknown(history, kind, stat)
    sites, order = _ordered(history, found.sites)
    x = asked.choice("x", AXES)
    arrays: dict[str, NDArray[Any]] = {"steps": found.steps.astype(np.float64)}
    if x != "step":
        arrays["x"] = on_axis(history, x, found.steps)
    arrays["values"] = _shown(found, show)[:, order].T
    blank = np.where(found.count == 0, NOT_MEASURED, np.uint8(0))
    arrays["flags"] = (found.flags | blank)[:, order].T
    return question.frame(
        {"kind": kind, "stat": stat, "show": show, "x": x, "sites": sites}, arrays
    )


def profile(question: Question) -> Body:
    """A statistic over depth, at the last measured step not after each step asked for."""
    asked, history = question.asked, question.history
    kind, stat = asked.text("kind"), asked.text("stat")
    wanted: list[int | None] = [*asked.integers("step", MOST_STEPS)] or [None]
    chosen = _chosen(question, kind)
    names = [key.site for key in history.keys(kind, stat=stat)]
    steps, lines = [], []
    for step in wanted:
        at = measured_step(history, kind, step)
        if at is None:
            break
        found = history.matrix(kind, stat, start=at, stop=at + 1)
        names = names or found.sites
        steps.append(at)
        values = found.values[0] if len(found.steps) else np.full(len(names), np.nan, np.float32)
        lines.append(dict(zip(found.sites, values, strict=True)))
    if not names:
        raise _unknown(history, kind, stat)
    sites = [site for site in _ordered(history, names)[0] if chosen is None or site in chosen]
    blank = {site: np.float32(np.nan) for site in sites}
    values = np.array([[{**blank, **line}[s] for s in sites] for line in lines], dtype=np.float32)
    values = values.reshape(len(steps), len(sites))
    there = np.array([[s in line for s in sites] for line in lines], dtype=bool).reshape(
        values.shape
    )
    flags = np.where(there & ~is_missing(values), _flags(values), NOT_MEASURED)
    header = {
        "kind": kind, "stat": stat, "sites": sites, "steps": steps,
        "asked": [step for step in wanted if step is not None],
        "all_steps": len(history.steps(kind)),
    }  # fmt: skip
    return question.frame(header, {"values": values, "flags": flags})


def _chosen(question: Question, kind: str) -> set[str] | None:
    """The sites asked for by name or by module; None: all."""
    asked = question.asked
    names = set(asked.several("site", MOST_SITES))
    under = asked.maybe("under")
    if under is None:
        return names or None
    known = {key.site for key in question.history.keys(kind)}
    inside = {site for site in known if is_under(site, under)}
    return inside & names if names else inside


def _ordered(history: History, sites: list[str]) -> tuple[list[str], NDArray[np.intp]]:
    ordered = in_depth_order(sites, history.info)
    place = {site: at for at, site in enumerate(sites)}
    return ordered, np.array([place[site] for site in ordered], dtype=np.intp)


def _shown(found: Buckets, show: str) -> Floats:
    if show == "peak":
        return np.where(np.abs(found.low) > np.abs(found.high), found.low, found.high)
    shown: Floats = getattr(found, show)
    return shown


def _flags(values: Floats) -> NDArray[np.uint8]:
    bits = np.isnan(values) * 1 | np.isposinf(values) * 2 | np.isneginf(values) * 4
    return np.asarray(bits, dtype=np.uint8)


def _unknown(history: History, kind: str, stat: str) -> UnknownKey:
    known = sorted({f"{key.kind}/{key.stat}" for key in history.keys()})
    return UnknownKey(f"There is no {stat!r} of {kind!r} here.{closest(f'{kind}/{stat}', known)}")
