"""`recognise`: which learning-rate schedule a series of rates follows.

The series is taken apart from left to right: the rise to the peak (warm-up), the time at the peak,
the way down, the time at the end. The way down gets its name from `curves.decay`, unless it goes in
stairs (drops with flat stretches between them) or the rate rises again (cycles, warm restarts).
A run that still goes on is judged by what it has shown; `explain` says what could not be told yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from torchvitals.curves.cycles import cycles
from torchvitals.curves.decay import told
from torchvitals.curves.series import Array, clean

FEWEST = 8
"""Points from which a shape can be read."""
LEVEL = 1e-6
"""Rates closer than this, relative to the peak, are the same: float32 rounds below it."""
HOLD = 0.1
"""Share of the way after the warm-up that a plateau must last to be one (WSD)."""
EXACT = 1e-3
"""Error, relative to the peak, of a shape that explains the flat start too."""
LITTLE = 1e-4
"""A fall of less than this, relative to the peak, shows no shape."""
ALONE = 0.9
"""Share of the drops that must stand alone for stairs."""
MANY_STAIRS = 8
"""From so many stairs on, a line or a cosine taken once per epoch is looked for."""
MOST = 1000
"""Points of a rise or fall that are looked at; a longer one is thinned."""

Indices: TypeAlias = NDArray[np.intp]
Name: TypeAlias = Literal[
    "constant", "linear", "cosine", "step", "exponential", "cyclical", "wsd", "unknown"
]
SMOOTH: dict[str, Name] = {
    "linear": "linear",
    "cosine": "cosine",
    "exponential": "exponential",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What a series of learning rates follows."""

    shape: Name
    """After the warm-up. "wsd" is warm-up, stable, decay."""
    warmup_steps: int
    """Steps from the first to the peak, if the rate rises at the start; otherwise 0."""
    peak: float
    peak_step: int
    """The first step at the peak."""
    final: float
    """The last rate seen."""
    num_drops: int
    """Sudden drops of a "step" schedule."""
    error: float
    """Root mean square error of the shape relative to the peak; NaN when nothing fits.

    Of "cyclical" it is how much the lengths of the cycles scatter.
    """
    explain: str
    """One sentence for a person."""


@dataclass(frozen=True, slots=True)
class _Way:
    """What was found after the warm-up."""

    shape: Name
    error: float
    words: str
    num_drops: int = 0


def recognise(steps: ArrayLike, rates: ArrayLike) -> Schedule:
    """The schedule of one parameter group, from its rates at some or all steps so far."""
    series = clean(steps, rates)
    x, y = series.steps, series.values
    if not len(series):
        return _schedule(x, y, 0, _Way("unknown", np.nan, "no rates yet"))
    peak = float(np.max(np.abs(y)))
    same = LEVEL * peak
    if np.ptp(y) <= same:
        return _schedule(x, y, 0, _Way("constant", 0.0, f"constant at {_rate(y[-1])}"))
    if len(series) < FEWEST:
        words = f"only {len(series)} rates; {FEWEST} are needed"
        return _schedule(x, y, 0, _Way("unknown", np.nan, words))
    if (found := cycles(x, y, same)) is not None:
        top = int(np.searchsorted(x, found.warmup_end))
        return _schedule(x, y, top, _Way("cyclical", found.error, found.words))
    top = int(np.argmax(y >= y.max() - same))
    if top and top == len(y) - 1:
        return _still_rising(x, y)
    return _schedule(x, y, top, _after(x[top:], y[top:], peak, same))


def _schedule(x: Array, y: Array, top: int, way: _Way) -> Schedule:
    """With the warm-up up to index `top` put in front."""
    words = way.words
    if top:
        rise = _named(x[: top + 1], y[: top + 1])
        words = f"{rise} warm-up over {x[top] - x[0]:g} steps to {_rate(y[top])}, then {words}"
    known = len(y) > 0
    return Schedule(
        shape=way.shape,
        warmup_steps=int(x[top] - x[0]) if known else 0,
        peak=float(y.max()) if known else np.nan,
        peak_step=int(x[int(np.argmax(y >= y.max() * (1.0 - LEVEL)))]) if known else 0,
        final=float(y[-1]) if known else np.nan,
        num_drops=way.num_drops,
        error=way.error,
        explain=words,
    )


def _still_rising(x: Array, y: Array) -> Schedule:
    x, y = _thin(x, y)
    shape, _ = told(x - x[0], y, float(y.max()))
    rise = f"from {_rate(y[0])} to {_rate(y[-1])} over {x[-1] - x[0]:g} steps"
    if shape is not None and shape.name == "exponential":
        error = shape.error / float(y.max())
        return _schedule(x, y, 0, _Way("exponential", error, f"exponential rise {rise}"))
    words = f"{_named(x, y)} rise {rise}, which may be a warm-up that still goes on"
    found = _schedule(x, y, 0, _Way("unknown", np.nan, words))
    return replace(found, warmup_steps=int(x[-1] - x[0]))


def _after(x: Array, y: Array, peak: float, same: float) -> _Way:
    """The way from the peak on, which never rises again."""
    if np.ptp(y) <= same:
        return _Way("constant", float(np.ptp(y)) / peak, f"constant at {_rate(y[-1])}")
    x, y = _thin(x, y)
    if np.ptp(y) <= LITTLE * peak:
        return _Way("unknown", np.nan, f"a fall to {_rate(y[-1])} so far, too little to tell")
    drops = np.flatnonzero(np.diff(y) < -0.05 * same)
    if _stairs(y, drops, same):
        return _steps(x, y, drops, peak)
    # The last point at the top and the first at the bottom belong to the way down.
    first = int(np.flatnonzero(y >= y[0] - same)[-1])
    last = int(np.argmax(y <= y[-1] + same))
    if len(y) - 1 - last <= 0.02 * len(y):
        last = len(y) - 1  # the flat end of a cosine is a part of it
    # And so is its flat start: only where the whole does not fit was the rate held at the peak.
    whole = _fall(x[: last + 1], y[: last + 1], peak, settled=last < len(y) - 1)
    if first == 0 or whole.error <= EXACT:
        return whole
    held = float(x[first] - x[0])
    part = _fall(x[first : last + 1], y[first : last + 1], peak, settled=last < len(y) - 1)
    if held >= HOLD * (x[-1] - x[0]):
        return _Way("wsd", part.error, f"stable for {held:g} steps, then {part.words}")
    return part if part.shape != "unknown" else whole


def _fall(x: Array, y: Array, peak: float, *, settled: bool) -> _Way:
    """A way down in words."""
    shape, names = told(x - x[0], y, peak)
    to = f"to {_rate(y[-1])}"
    if shape is None:
        why = f"so far, too little to tell {' from '.join(names)}" if names else "of no known shape"
        return _Way("unknown", np.nan, f"a fall {to} {why}")
    length = float(x[-1] - x[0])
    share = length / shape.length
    if settled:
        to += f" in {length:g} steps and constant from there"
    elif share < 0.98:
        to += " so far"
        if share > 0.2:  # a smaller part of a curve does not say where it ends
            to += f", {100 * share:.0f} % of about {float(f'{shape.length:.2g}'):.0f} steps"
    return _Way(SMOOTH.get(shape.name, "unknown"), shape.error / peak, f"{shape.name} {to}")


def _stairs(y: Array, drops: Indices, same: float) -> bool:
    """Drops with a flat stretch on both sides, and more than the last digit of a slow fall."""
    gaps = np.diff(drops)
    alone = np.concatenate([[True], gaps > 1]) & np.concatenate([gaps > 1, [True]])
    return bool(np.mean(alone) >= ALONE and np.median(y[drops] - y[drops + 1]) > 5.0 * same)


def _steps(x: Array, y: Array, drops: Indices, peak: float) -> _Way:
    """Stairs: drops by decree, or a smooth schedule that moves once per epoch."""
    num = len(drops)
    if num >= MANY_STAIRS:
        starts = np.concatenate([[0], drops + 1])
        smooth = _fall(x[starts], y[starts], peak, settled=False)
        if smooth.shape in ("linear", "cosine"):
            return replace(smooth, words=f"{smooth.words}, in {num} stairs")
    ratios = y[drops + 1] / y[drops]
    even = float(np.ptp(ratios)) < 1e-3
    by = f"each by a factor of {ratios[0]:.3g}" if num > 1 else f"by a factor of {ratios[0]:.3g}"
    count = "1 drop" if num == 1 else f"{num} drops"
    words = f"{count}{' ' + by if even else ''} to {_rate(y[-1])}"
    return _Way("step", 0.0, words, num)


def _named(x: Array, y: Array) -> str:
    """A rise in one word."""
    x, y = _thin(x, y)
    if len(x) < 4:
        return "short"
    if np.ptp(y[:-1]) <= LEVEL * float(y.max()):
        return "constant"
    # Between two samples the peak may have come and gone, so the last point need not fit.
    tries = (told(x[:end] - x[0], y[:end], float(y.max()))[0] for end in (len(x), len(x) - 1))
    return next((shape.name for shape in tries if shape is not None), "irregular")


def _thin(x: Array, y: Array) -> tuple[Array, Array]:
    """About `MOST` points, the first and the last among them."""
    keep = np.unique(np.append(np.arange(0, len(y), -(-len(y) // MOST)), len(y) - 1))
    return x[keep], y[keep]


def _rate(value: float) -> str:
    """3e-4 rather than 0.0003 or 3e-04."""
    text = f"{value:.3g}"
    if value and not 0.001 <= abs(value) < 1000.0:
        digits, _, power = f"{value:.2e}".partition("e")
        text = f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return text
