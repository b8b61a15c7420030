"""The power law with a floor, L(u) = c + a·(1 + u/t0)^−b, fitted to many curves at once.

For given b and t0 the rest is linear, so a grid over both and a closed form for a ≥ 0 and c (≥ 0
where a floor is asked for) finds the best of all: no start values, no iterations, no local minima,
and hundreds of resampled curves cost one matrix product. The exponential, which is the limit of
large b and t0, stands in the grid as b = ∞ with t0 as its time constant.

u is the share of the steps seen, 0 at the first and 1 at the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchvitals.curves.series import Array

COARSE_B = np.geomspace(0.05, 4.0, 22)
COARSE_T0 = np.geomspace(1e-5, 3.0, 16)
COARSE_TAU = np.geomspace(0.02, 3.0, 26)
SHORTEST = 0.5
"""The smallest t0, in gaps between points: below it the first point alone would bend the curve."""
CELL = 9
"""Points to a side of a finer grid."""
ZOOMS = (1.0, 1.0, 0.4, 0.15, 0.05)
"""Half widths of the finer grids around the best so far, in cells of the coarse one."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Pairs of exponent and offset."""

    b: Array
    t0: Array

    def curves(self, u: Array, spread: Array | float = 0.0) -> Array:
        """(pairs, points): (1 + u/t0)^−b, or exp(−u/t0) where b is infinite.

        With `spread`, the variance of u in a bin, it is the mean over the bin to second order: the
        law is convex, and its value in the middle of a wide bin lies below the bin's mean.
        """
        power = np.isfinite(self.b)
        b, t0 = self.b[power, None], self.t0[power, None]
        out = np.empty((len(self.b), len(u)))
        out[power] = np.exp(-b * np.log1p(u / t0)) * (
            1.0 + 0.5 * b * (b + 1.0) * spread / (u + t0) ** 2
        )
        tau = self.t0[~power, None]
        out[~power] = np.exp(-u / tau) * (1.0 + 0.5 * spread / tau**2)
        return out

    def __add__(self, other: Grid) -> Grid:
        return Grid(np.append(self.b, other.b), np.append(self.t0, other.t0))


@dataclass(frozen=True, slots=True)
class Fit:
    """The best law for each of the curves."""

    a: Array
    b: Array
    c: Array
    t0: Array
    rss: Array
    """Weighted sum of the squared residuals."""

    def at(self, u: Array, spread: Array | float = 0.0) -> Array:
        """(curves, points): the laws at `u`, or their means over bins (see `Grid.curves`)."""
        return self.c[:, None] + self.a[:, None] * Grid(self.b, self.t0).curves(u, spread)


def coarse(gap: float) -> Grid:
    """All laws worth a try for points about `gap` apart."""
    b, t0 = np.meshgrid(COARSE_B, COARSE_T0[SHORTEST * gap <= COARSE_T0])
    power = Grid(b.ravel(), t0.ravel())
    tau = COARSE_TAU[2.0 * gap <= COARSE_TAU]
    return power + Grid(np.full(len(tau), np.inf), tau)


def around(b: float, t0: float, zoom: float) -> Grid:
    """A finer grid, `zoom` coarse cells to each side of one pair."""
    to = zoom * np.linspace(-1.0, 1.0, CELL)
    if np.isinf(b):
        return Grid(np.full(CELL, np.inf), t0 * (COARSE_TAU[1] / COARSE_TAU[0]) ** to)
    fine_b, fine_t0 = np.meshgrid(
        b * (COARSE_B[1] / COARSE_B[0]) ** to, t0 * (COARSE_T0[1] / COARSE_T0[0]) ** to
    )
    return Grid(fine_b.ravel(), fine_t0.ravel())


def fit(grid: Grid, u: Array, spread: Array, curves: Array, weights: Array, *, floor: bool) -> Fit:
    """The law of the grid nearest to each row of `curves` (curves, points) by weighted squares.

    With `floor` the curves are positive and c is kept at 0 or above.
    """
    phi = grid.curves(u, spread)
    total = weights.sum()
    weighted = (curves * weights).T
    mean = weighted.sum(axis=0) / total
    phi_mean = phi @ weights / total
    phi_square = phi**2 @ weights
    cross = phi @ weighted
    phi_spread = phi_square - total * phi_mean**2
    shared = cross - total * phi_mean[:, None] * mean
    safe = np.where(phi_spread > 1e-12 * total, phi_spread, np.inf)
    a = np.maximum(shared / safe[:, None], 0.0)
    c = mean - a * phi_mean[:, None]
    # Both are relative to the best constant, which is the same for all laws.
    loss = a * (a * np.minimum(safe, 1e300)[:, None] - 2.0 * shared)
    if floor:
        sunk = c < 0.0
        lone = np.maximum(cross / phi_square[:, None], 0.0)
        a = np.where(sunk, lone, a)
        loss = np.where(sunk, total * mean**2 - lone * cross, loss)
        c = np.where(sunk, 0.0, c)
    best = np.argmin(loss, axis=0)
    rows = np.arange(len(curves))
    flat = ((curves - mean[:, None]) ** 2) @ weights
    return Fit(
        a=a[best, rows],
        b=grid.b[best],
        c=c[best, rows],
        t0=grid.t0[best],
        rss=np.maximum(flat + loss[best, rows], 0.0),
    )
