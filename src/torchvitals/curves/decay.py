"""How a learning rate changes from one level to another: the shapes, and which one fits.

Schedules are computed, not measured, so the right shape fits to the rounding of float32 and the
others do not. That is why even a part of a cosine is told from a line, and why two shapes that both
fit to rounding are reported as not told apart instead of one being picked.

    linear                  A + B·u
    exponential             A·g^u
    cosine                  f + (p − f)/2·(1 + cos(π·u/T)), T no shorter than what was seen

and, for falls that none of these describes:

    polynomial              f + (p − f)·(1 − u/T)^k, k one of `POWERS`
    inverse square root     A/√(u + t0)
    one minus square root   A − B·√u
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from torchvitals.curves.series import Array

ROUNDING = 2e-7
"""Errors, relative to the peak, that float32 makes by itself."""
FITS = 0.01
"""Errors, relative to the change, up to which a shape may be called by its name."""
PLAIN = 1e-4
"""Errors, relative to the change, below which no rarer shape is looked for."""
CLEARLY = 3.0
"""How many times worse the runner-up must be."""
POWERS = (0.5, 0.75, 0.9, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape and how well it fits."""

    name: str
    error: float
    """Root mean square, in the unit of the rates."""
    length: float = np.nan
    """Steps from start to end, where the shape has an end."""


def told(u: Array, y: Array, peak: float) -> tuple[Shape | None, tuple[str, ...]]:
    """The shape of rates `y` at steps `u` from the start, and the names that fit as well.

    None when nothing fits, or when several do because the change so far does not tell.
    """
    rounding = ROUNDING * peak
    common = sorted(_common(u, y), key=lambda shape: shape.error)
    best = common[0]
    if best.error > max(PLAIN * float(np.ptp(y)), rounding) and y[-1] < y[0]:
        other = min(_others(u, y), key=lambda shape: shape.error)
        if CLEARLY * other.error < best.error:
            best, common = other, [other]
    if best.error > max(FITS * float(np.ptp(y)), rounding):
        return None, ()
    close = [s.name for s in common if s.error <= max(CLEARLY * best.error, rounding)]
    return (best if len(close) == 1 else None), tuple(close)


def _common(u: Array, y: Array) -> list[Shape]:
    return [
        Shape("linear", _line(u, y)),
        Shape("exponential", _exponential(u, y)),
        _cosine(u, y),
    ]


def _cosine(u: Array, y: Array) -> Shape:
    """Its top may lie before the first sample, by less than a gap."""
    best = Shape("cosine", np.inf)
    for share in np.linspace(0.0, 1.0, 9)[:-1]:
        late = u + share * (u[1] - u[0])

        def wave(length: float, late: Array = late) -> Array:
            return np.cos(np.pi * late / length)

        best = min(best, _longest("cosine", wave, y, float(late[-1])), key=lambda s: s.error)
        if best.error <= PLAIN * float(np.ptp(y)) or best.error > 3.0 * FITS * float(np.ptp(y)):
            break
    return best


def _others(u: Array, y: Array) -> list[Shape]:
    def polynomial(power: float) -> Shape:
        name = f"polynomial of power {power:g}"
        return _longest(name, lambda length: (1.0 - u / length) ** power, y, float(u[-1]))

    return [
        *(polynomial(power) for power in POWERS),
        Shape("inverse square root", _inverse_root(u, y)),
        Shape("one minus square root", _line(np.sqrt(u), y)),
    ]


def _line(x: Array, y: Array) -> float:
    """Error of the best A + B·x."""
    x0, y0 = x - x.mean(), y - y.mean()
    square = float(x0 @ x0)
    slope = float(x0 @ y0) / square if square else 0.0
    return float(np.sqrt(np.mean((y0 - slope * x0) ** 2)))


def _exponential(u: Array, y: Array) -> float:
    """Error of the best A·g^u, taken in logarithms and put back on the scale of the rates."""
    if (y <= 0.0).any():
        return np.inf
    logs = np.log(y)
    slope, start = np.polyfit(u, logs, 1)
    return float(np.sqrt(np.mean((y - np.exp(start + slope * u)) ** 2)))


def _longest(name: str, curve: Callable[[float], Array], y: Array, end: float) -> Shape:
    """The length T ≥ `end` for which the curve fits best, by 4 ever finer searches."""
    lengths = end * np.geomspace(1.0, 30.0, 50)
    for _ in range(4):
        errors = [_line(curve(float(length)), y) for length in lengths]
        best = int(np.argmin(errors))
        found = Shape(name, errors[best], float(lengths[best]))
        low, high = lengths[max(best - 1, 0)], lengths[min(best + 1, len(lengths) - 1)]
        lengths = np.linspace(low, high, 21)
    return found


def _inverse_root(u: Array, y: Array) -> float:
    """1/y² is a line in u."""
    if (y <= 0.0).any():
        return np.inf
    slope, start = np.polyfit(u, 1.0 / y**2, 1)
    inverse = start + slope * u
    if (inverse <= 0.0).any():
        return np.inf
    return float(np.sqrt(np.mean((y - 1.0 / np.sqrt(inverse)) ** 2)))
