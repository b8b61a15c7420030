"""Rates that rise again after they fell: warm restarts, triangles, a cosine past its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchvitals.curves.series import Array

MOST = 20_000
"""Points looked at; a longer series is thinned."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """What the ups and downs have in common."""

    warmup_end: float
    """Step at which the warm-up ends: the first step if there is none."""
    error: float
    """Scatter of the cycle lengths relative to the growth found; 0 with fewer than three tops."""
    words: str


def cycles(x: Array, y: Array, same: float) -> Cycles | None:
    """The ups and downs of the rates, or None if they do not rise after they fell.

    Changes up to `same` are rounding.
    """
    thin = slice(None, None, -(-len(y) // MOST))
    x, y = x[thin], y[thin]
    turns = _turns(y, same)
    up = np.diff(y[turns]) > 0.0
    starts_up = bool(up[0])
    if len(up) < (3 if starts_up else 2):
        return None
    rises = [(turns[i], turns[i + 1]) for i in np.flatnonzero(up)]
    later = rises[1:] if starts_up else rises
    tops = [end for _, end in rises] if starts_up else [0, *(end for _, end in later)]
    # A first rise that takes as long as the later ones is the cycle's own, no warm-up.
    usual = max(float(x[end] - x[start]) for start, end in later)
    own = not starts_up or float(x[tops[0]] - x[0]) <= 1.1 * usual
    warmup_end = x[0] if own else x[int(np.argmax(y >= y[tops[0]] - same))]
    kind = "restarts" if all(end - start == 1 for start, end in later) else "cycles"
    if up[-1] and kind == "cycles":
        tops.pop()  # the last rise may not have reached its top yet
    error, words = _period(np.diff(x[tops]), kind, len(later))
    return Cycles(float(warmup_end), error, words)


def _turns(y: Array, same: float) -> list[int]:
    """Indices of the first point, of the end of each rise and fall, and of the last point."""
    turns, side, edge = [0], 0, 0
    rates = y.tolist()
    for i, rate in enumerate(rates):
        change = rate - rates[edge]
        if change * side > 0.0 or change == 0.0:
            edge = i
        elif abs(change) > same:
            if side:
                turns.append(edge)
            side, edge = (1 if change > 0.0 else -1), i
    return turns if turns[-1] == len(y) - 1 else [*turns, len(y) - 1]


def _period(periods: Array, kind: str, num: int) -> tuple[float, str]:
    count = f"{num} {kind if num != 1 else kind[:-1]}"
    if len(periods) < 2:
        often = f" after {periods[0]:g} steps" if len(periods) else ""
        return 0.0, f"{count}{often}, too few to tell the period"
    mean = float(periods.mean())
    scatter = float(np.abs(periods - mean).max()) / mean
    if scatter < 0.05:
        return scatter, f"{count}, one every {mean:g} steps"
    ratios = periods[1:] / periods[:-1]
    growth = float(ratios.mean())
    off = float(np.abs(ratios - growth).max()) / growth
    if len(ratios) and off < 0.1:
        return off, f"{count}, each cycle {growth:.2g}× as long as the one before"
    return scatter, f"{count} of uneven length"
