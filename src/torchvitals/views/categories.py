"""`category_table`: the loss by category, the worst first."""

from __future__ import annotations

import numpy as np

from torchvitals.record import Key, is_missing
from torchvitals.store import History
from torchvitals.views import words
from torchvitals.views.columns import TITLES, ColumnTable, trend
from torchvitals.views.layers import SPARK_WIDTH

KIND = "category"


def category_table(
    history: History,
    *,
    step: int | None = None,
    site: str | None = None,
    top: int | None = None,
    spark_width: int = SPARK_WIDTH,
) -> ColumnTable | None:
    """Categories by their last loss, those that are not finite above all. None if there are none.

    All categories are read at once for their last values, and only those shown in full: there may
    be thousands.
    """
    stop = None if step is None else step + 1
    losses = _last(history, "loss", site, stop)
    if not losses:
        return None
    order = sorted(losses, key=lambda name: (np.isfinite(losses[name]), -losses[name]))
    samples = _last(history, "num_samples", site, stop)
    broken = _last(history, "num_nonfinite", site, stop)
    lines, notes = [], []
    for name in order[:top]:
        line = trend(history, Key(KIND, name, "loss"), stop=stop, spark_width=spark_width)
        if line is not None:
            lines.append(line)
            notes.append(_note(samples.get(name), broken.get(name)))
    return ColumnTable(
        kind=KIND,
        title=f"{TITLES[KIND]}, worst first",
        lines=lines,
        num_columns=len(losses),
        notes=notes,
    )


def _last(history: History, stat: str, site: str | None, stop: int | None) -> dict[str, float]:
    """The last value of each category that has one."""
    found = history.matrix(KIND, stat, sites=site, stop=stop)
    there = ~is_missing(found.values)
    return {
        name: float(found.values[np.flatnonzero(there[:, at])[-1], at])
        for at, name in enumerate(found.sites)
        if there[:, at].any()
    }


def _note(samples: float | None, broken: float | None) -> str:
    parts = []
    if samples is not None and np.isfinite(samples):
        parts.append(words.plural(int(samples), "sample"))
    if broken:
        parts.append(f"{words.count(int(broken))} not finite")
    return ", ".join(parts)
