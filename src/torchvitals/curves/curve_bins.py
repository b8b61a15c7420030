"""A noisy curve in at most 60 bin means, and the law nearest to them.

The bins go by the cube root of the share of the run, so they are narrow where a loss is steep: the
last is 5 % of the run wide, the first a single point. Points more than `CLIP` robust deviations off
a first, rough fit are pulled in, so that spikes bend nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchvitals.curves.power_law import ZOOMS, Fit, around, coarse, fit
from torchvitals.curves.series import Array

NUM_BINS = 60
GROUP = 5
"""Bins that share one estimate of the noise."""
CLIP = 4.0


@dataclass(frozen=True, slots=True)
class Bins:
    """A curve in at most `NUM_BINS` means, scaled to about 1."""

    u: Array
    spread: Array
    means: Array
    weights: Array
    """1/variance of each mean, if the points were independent."""

    def since(self, start: float) -> Bins:
        """Without the first `start` of the run."""
        late = self.u >= start
        return Bins(self.u[late], self.spread[late], self.means[late], self.weights[late])


def binned(u: Array, y: Array, gap: float, *, floor: bool) -> Bins:
    """The bins of values `y` at shares `u` of the run, about `gap` apart."""
    place = np.minimum((np.cbrt(u) * NUM_BINS).astype(np.intp), NUM_BINS - 1)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(place)) + 1])
    counts = np.diff(np.append(starts, len(u))).astype(np.float64)
    middle = np.add.reduceat(u, starts) / counts
    spread = np.maximum(np.add.reduceat(u * u, starts) / counts - middle**2, 0.0)
    medians = np.array([np.median(part) for part in np.split(y, starts[1:])])
    rough = best(Bins(middle, np.zeros_like(spread), _calm(medians), counts), gap, floor=floor)
    curve = rough.at(u)[0]
    off = y - curve
    noise = np.array([np.median(np.abs(part)) for part in np.split(off, starts[GROUP::GROUP])])
    # A group that happens to lie on the curve must not outweigh all others.
    noise = 1.4826 * np.maximum(noise, max(0.3 * float(np.median(noise)), 1e-9))
    per_bin = np.repeat(noise, GROUP)[: len(starts)]
    limit = CLIP * np.repeat(per_bin, counts.astype(np.intp))
    means = np.add.reduceat(curve + np.clip(off, -limit, limit), starts) / counts
    return Bins(middle, spread, means, counts / per_bin**2)


def _calm(medians: Array) -> Array:
    """Running median of five: bins of one point have no median of their own to resist a spike."""
    padded = np.pad(medians, 2, mode="reflect" if len(medians) > 2 else "edge")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1))


def best(bins: Bins, gap: float, *, floor: bool) -> Fit:
    """The law nearest to the bins, found coarsely and then ever finer."""
    curve = bins.means[None, :]
    law = fit(coarse(gap), bins.u, bins.spread, curve, bins.weights, floor=floor)
    for zoom in ZOOMS:
        grid = around(float(law.b[0]), float(law.t0[0]), zoom)
        law = fit(grid, bins.u, bins.spread, curve, bins.weights, floor=floor)
    return law
