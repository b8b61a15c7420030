"""`Choice`: which columns a sink gets. By default at most `LIMIT` series a run, never thousands.

The usual ones: loss and other numbers of the user's own, evaluations, learning rates, overall norms
and ratios, median, p95, min, max and counts over the parameters, throughput, where the time goes,
memory; and by name the parameters that stood out most. A parameter stands out when it has the
largest gradient or the smallest update of a step; the first few that do are followed from then on,
so that the number of series stays bounded however many parameters there are.

    loss and numbers of the user's own    8     throughput                4
    evaluations                           6     where the time goes       6
    learning rates                        3     memory and processors     4
    overall norms and ratios              7     named parameters          6
    summary over the parameters          12     their histograms          4

`series`, a regular expression, adds every column it is found in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import ROOT, SCALAR, ConfigError, HistogramRow, Key, Row, is_missing

LIMIT = 60
MAX_HEADERS = 16
HISTOGRAM = "histogram"
"""The stat by which a regular expression finds histograms: ``gradient/fc.weight/histogram``."""

NORMS = frozenset(
    {
        *(Key("gradient", ROOT, stat) for stat in ("norm", "clipped_norm", "clip_ratio")),
        Key("parameter", ROOT, "norm"),
        *(Key("update", ROOT, stat) for stat in ("norm", "ratio", "lr_ratio")),
    }
)
SUMMARY_SITES = frozenset({"gradient_norm", "update_ratio", "monitor"})
PHASES = frozenset({"step", "data", "forward", "backward", "optimizer", "other"})
SPEEDS = frozenset({"steps_per_s", "samples_per_s", "tokens_per_s", "mfu"})
MEMORY = frozenset({"rss_bytes", "memory_frac", "allocated_bytes", "util_frac"})
CAPS = {"told": 8, "evaluations": 6, "rates": 3, "machine": 4}
"""Kinds of columns whose number depends on the user's code."""
NAMED = {"largest_gradient": ("gradient", "norm", 4), "smallest_update": ("update", "ratio", 2)}
"""List of offenders → kind and stat to follow, and how many of them."""


class Choice:
    """Picks columns out of rows; remembers which it has picked."""

    def __init__(self, parameters: Sequence[str] = (), series: str | None = None) -> None:
        self._parameters = parameters
        self._pattern = pattern(series)
        self._taken: dict[str, set[Key]] = {name: set() for name in (*CAPS, *NAMED)}
        self._left_out: set[Key] = set()
        self._places: dict[int, tuple[tuple[Key, ...], NDArray[np.intp], tuple[Key, ...]]] = {}
        self._offenders: dict[int, tuple[tuple[Key, ...], dict[str, int]]] = {}

    @property
    def left_out(self) -> list[str]:
        """Numbers of the user's own that were too many to be forwarded."""
        return sorted(map(str, self._left_out))

    def pick(self, row: Row) -> Row | None:
        """The chosen columns that were measured; None when there are none."""
        self._follow(row)
        places, header = self._chosen(row.header)
        values = row.values[places]
        missing = is_missing(values)
        if missing.all():
            return None
        if missing.any():
            header = tuple(compress(header, ~missing))
            values = values[~missing]
        return Row(row.step, row.time, header, values)

    def pick_histograms(self, row: HistogramRow) -> HistogramRow | None:
        """Those of the gradients that are followed, and what `series` asks for."""
        followed = {key.site for key in self._taken["largest_gradient"]}
        lines = [
            line
            for line, (kind, site) in enumerate(row.sites)
            if (kind == "gradient" and site in followed) or self._asked(Key(kind, site, HISTOGRAM))
        ]
        if not lines:
            return None
        sites = tuple(row.sites[line] for line in lines)
        return HistogramRow(row.step, row.time, sites, row.counts[lines])

    def _follow(self, row: Row) -> None:
        """Let the worst parameters of this step in, while there is room."""
        known = self._offenders.get(id(row.header))
        if known is None:
            columns = {
                name: place
                for place, key in enumerate(row.header)
                for name in NAMED
                if key == Key("summary", f"{name}.1", "parameter")
            }
            _make_room(self._offenders)
            known = self._offenders[id(row.header)] = (row.header, columns)
        for name, place in known[1].items():
            kind, stat, cap = NAMED[name]
            value = row.values[place]
            if len(self._taken[name]) >= cap or not np.isfinite(value):
                continue
            number = int(value)
            if number < len(self._parameters):
                key = Key(kind, self._parameters[number], stat)
                if key not in self._taken[name]:
                    self._taken[name].add(key)
                    self._places.clear()

    def _chosen(self, header: tuple[Key, ...]) -> tuple[NDArray[np.intp], tuple[Key, ...]]:
        known = self._places.get(id(header))
        if known is None:
            _make_room(self._places)
            places = [place for place, key in enumerate(header) if self._wants(key)]
            # The header is kept with them: its id stays its own.
            keys = tuple(header[place] for place in places)
            known = self._places[id(header)] = (header, np.array(places, dtype=np.intp), keys)
        return known[1:]

    def _wants(self, key: Key) -> bool:
        return self._usual(key) or self._asked(key)

    def _asked(self, key: Key) -> bool:
        return self._pattern is not None and self._pattern.search(str(key)) is not None

    def _usual(self, key: Key) -> bool:
        kind, site, stat = key
        if kind == SCALAR:
            return self._some("told", key)
        if kind == "eval":
            return self._some("evaluations", key)
        if kind == "optimizer":
            return stat == "lr" and self._some("rates", key)
        if kind == "machine":
            return stat in MEMORY and self._some("machine", key)
        if kind in {"gradient", "parameter", "update"}:
            return key in NORMS or any(key in self._taken[name] for name in NAMED)
        return (
            (kind == "summary" and site in SUMMARY_SITES)
            or (kind == "clock" and stat == "wall_s" and site in PHASES)
            or (kind == "speed" and stat in SPEEDS)
        )

    def _some(self, name: str, key: Key) -> bool:
        taken = self._taken[name]
        if key in taken or len(taken) < CAPS[name]:
            taken.add(key)
            return True
        if name in {"told", "evaluations"} and not self._asked(key):
            self._left_out.add(key)
        return False


def pattern(series: str | None) -> re.Pattern[str] | None:
    """The regular expression, or an error that says what is wrong with it."""
    if series is None:
        return None
    try:
        return re.compile(series)
    except (re.error, TypeError) as error:
        raise ConfigError(
            f"series must be a regular expression on columns like 'gradient/fc.weight/norm', got "
            f"{series!r}: {error}"
        ) from None


def _make_room(known: dict[int, Any]) -> None:
    if len(known) >= MAX_HEADERS:
        known.clear()
