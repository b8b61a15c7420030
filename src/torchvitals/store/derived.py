"""Stats that are not stored but follow from what is: `absmax`, and percentiles `p0` … `p100`.

absmax = max(|min|, |max|)
pNN    = the NN-th percentile of the histogram, tightened by the stored min and max
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from torchvitals.record.bins import percentiles
from torchvitals.record.errors import UnknownKey
from torchvitals.record.key import Key
from torchvitals.record.row import MISSING, Floats, is_missing
from torchvitals.store import pyramid
from torchvitals.store.answers import Buckets
from torchvitals.store.codec import Ints
from torchvitals.store.drawing import thinned

if TYPE_CHECKING:
    from torchvitals.store.history import History

_PERCENTILE = re.compile(r"p(\d+(?:\.\d+)?)")


def series(
    history: History, key: Key, *, attempt: int | None, start: int | None, stop: int | None
) -> tuple[Ints, Floats] | None:
    """The computed column, or None when it can't be computed from this run."""
    if key.stat == "absmax":
        return _absmax(history, key, attempt=attempt, start=start, stop=stop)
    share = _share(key.stat)
    if share is None or (key.kind, key.site) not in history.histogram_sites(key.kind):
        return None
    steps, counts = history.histograms(key.site, key.kind, attempt=attempt, start=start, stop=stop)
    if not len(steps):
        return steps, np.empty(0, dtype=np.float32)
    bounds = []
    for stat, open_end in (("min", -np.inf), ("max", np.inf)):
        bound = np.full(len(steps), open_end)
        if history.keys(key.kind, f"^{re.escape(key.site)}$", stat):
            at, values = history.series(
                Key(key.kind, key.site, stat), attempt=attempt, start=start, stop=stop
            )
            _, mine, theirs = np.intersect1d(steps, at, assume_unique=True, return_indices=True)
            known = values[theirs].astype(np.float64)
            bound[mine] = np.where(np.isfinite(known), known, open_end)
        bounds.append(bound)
    values = percentiles(counts, [share], *bounds)[:, 0].astype(np.float32)
    return steps, values


def matrix(
    history: History,
    kind: str,
    stat: str,
    sites: str | None,
    *,
    attempt: int | None,
    start: int | None,
    stop: int | None,
    points: int | None,
) -> tuple[Ints, list[str], Floats]:
    """A matrix of a computed stat; no sites when none has it."""
    if stat == "absmax":
        names = [key.site for key in history.keys(kind, sites, "min")]
        ends = {key.site for key in history.keys(kind, sites, "max")}
        names = [name for name in names if name in ends]
    elif _share(stat) is not None:
        pattern = re.compile(sites or "")
        names = [site for _, site in history.histogram_sites(kind) if pattern.search(site)]
    else:
        names = []
    found = [
        series(history, Key(kind, name, stat), attempt=attempt, start=start, stop=stop)
        for name in names
    ]
    columns = [(name, one) for name, one in zip(names, found, strict=True) if one is not None]
    names = [name for name, _ in columns]
    steps = np.unique(np.concatenate([np.empty(0, np.int64), *(one[0] for _, one in columns)]))
    values = np.full((len(steps), len(names)), MISSING, dtype=np.float32)
    for at, (_, (mine, numbers)) in enumerate(columns):
        values[np.searchsorted(steps, mine), at] = numbers
    if points is not None:
        steps, values = thinned(steps, values, points)
    return steps, names, values


def buckets(
    history: History,
    kind: str,
    stat: str,
    points: int,
    *,
    sites: Collection[str] | None,
    attempt: int | None,
    start: int | None,
    stop: int | None,
    most_values: int | None,
) -> tuple[pyramid.Cells, list[str]]:
    """Buckets of a computed stat, and the sites that have it."""
    if stat == "absmax":
        ends = [
            history.buckets(
                kind, end, points, sites=sites, attempt=attempt, start=start, stop=stop,
                most_values=most_values,
            )
            for end in ("min", "max")
            if history.keys(kind, stat=end)
        ]  # fmt: skip
        same = len(ends) == 2 and ends[0].sites == ends[1].sites
        if same and np.array_equal(ends[0].steps, ends[1].steps):
            return _larger(*ends), ends[0].sites
    # Names, not an expression of the caller's.
    named = None if sites is None else f"^(?:{'|'.join(map(re.escape, sites))})$"
    steps, names, values = matrix(
        history, kind, stat, named, attempt=attempt, start=start, stop=stop, points=None
    )
    cells = pyramid.from_values(steps, values)
    length = -(-len(steps) // points)
    if length > 1:
        cells = pyramid.merge(cells, np.arange(len(steps)) // length)
    return cells, names


def _larger(low: Buckets, high: Buckets) -> pyramid.Cells:
    """max(|min|, |max|) of buckets; their lower end is a bound: no value lies below it."""
    top = np.fmax(
        np.fmax(np.abs(low.low), np.abs(low.high)), np.fmax(np.abs(high.low), np.abs(high.high))
    )
    bottom = np.fmax(np.fmax(high.low, -low.high), np.float32(0))
    bits = low.flags | high.flags
    # A magnitude has no sign: −Inf counts as Inf.
    infinite = (bits & (pyramid.HAS_INF | pyramid.HAS_MINUS_INF)) != 0
    flags = (bits & pyramid.HAS_NAN) | infinite * np.uint8(pyramid.HAS_INF)
    last = np.maximum(np.abs(low.last), np.abs(high.last))
    return pyramid.Cells(
        low.steps, low.steps, np.fmin(bottom, top), top, last, flags.astype(np.uint8),
        np.maximum(low.count, high.count),
    )  # fmt: skip


def _absmax(
    history: History, key: Key, *, attempt: int | None, start: int | None, stop: int | None
) -> tuple[Ints, Floats] | None:
    try:
        low = history.series(key._replace(stat="min"), attempt=attempt, start=start, stop=stop)
        high = history.series(key._replace(stat="max"), attempt=attempt, start=start, stop=stop)
    except UnknownKey:
        return None
    steps = np.union1d(low.steps, high.steps)
    both = np.full((2, len(steps)), MISSING, dtype=np.float32)
    for line, one in zip(both, (low, high), strict=True):
        line[np.searchsorted(steps, one.steps)] = np.abs(one.values)
    largest = np.maximum(both[0], both[1])
    largest = np.where(is_missing(both[0]), both[1], largest)
    return steps, np.where(is_missing(both[1]), both[0], largest)


def _share(stat: str) -> float | None:
    match = _PERCENTILE.fullmatch(stat)
    share = float(match[1]) if match else None
    return share if share is not None and share <= 100 else None
