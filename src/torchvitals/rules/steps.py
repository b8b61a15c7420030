"""How large the steps are: the update ratio ‖Δw‖/‖w‖ of the weights, early and now."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchvitals.rules.run import Run
from torchvitals.rules.stored import Ints
from torchvitals.rules.table import Array, Line, median

FULL = 0.3
"""Ratios count while the rate is at least this share of its peak: not in warm-up, not annealed."""
EARLY = 8
TINY_RMS = 1e-4
"""Weights smaller than this began at zero; their ratio says nothing."""
NEW, MODEST, USUAL = 0.9, 0.1, 0.3
"""Ratios of the first look: above the first value a weight began at zero, if this share of all is
below the second one."""


def step_sizes(run: Run) -> Line:
    """Median over the weights of the update ratio, at each monitored step with a full rate."""
    return run.keep("step sizes", lambda: _step_sizes(run))


def _step_sizes(run: Run) -> Line:
    ratios = run.weights("update", "ratio")
    if not ratios:
        return Line(np.empty(0, dtype=np.int64), np.empty(0))
    values = np.where(_tiny(run, ratios.steps, ratios.sites), np.nan, ratios.values)
    values[:, _from_zero(values[0])] = np.nan
    middle = median(values, axis=1)
    full = np.array([run.lr_at(int(step)) >= FULL * run.lr_peak for step in ratios.steps])
    known = np.isfinite(middle) & (full | ~np.isfinite(run.lr_peak))
    return Line(ratios.steps[known], middle[known])


def _tiny(run: Run, steps: Ints, sites: tuple[str, ...]) -> NDArray[np.bool_]:
    """Where a weight is (still) about zero."""
    sizes = run.weights("parameter", "rms")
    if not sizes or sizes.sites != sites or len(sizes.steps) != len(steps):
        return np.zeros((len(steps), len(sites)), dtype=bool)
    return np.asarray(sizes.values < TINY_RMS)


def _from_zero(first: Array) -> NDArray[np.bool_]:
    """Weights that began at zero (LoRA's second ones): all of them is new, while others are not."""
    known = first[np.isfinite(first)]
    if not len(known) or float(np.quantile(known, USUAL)) > MODEST:
        return np.zeros(len(first), dtype=bool)
    return np.asarray(first > NEW)


def early_size(run: Run) -> float:
    """The ratio of the first steps, before anything had time to blow up; NaN when unknown."""
    sizes = step_sizes(run)
    return float(np.median(sizes.values[:EARLY])) if sizes else float("nan")


def first_size(run: Run) -> float:
    """The smallest ratio of the first three steps at full rate."""
    sizes = step_sizes(run)
    return float(np.min(sizes.values[:3])) if sizes else float("nan")


def size_now(run: Run, num: int = 16) -> float:
    """The ratio lately."""
    sizes = step_sizes(run)
    return float(np.median(sizes.values[-num:])) if sizes else float("nan")


def weight_growth(run: Run, num: int = 4) -> float:
    """The median weight's norm lately over that after the first step; 1 when unknown."""
    norms = run.weights("parameter", "norm")
    if len(norms.steps) < 2:
        return 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        grown = norms.typical(num) / norms.values[0]
    known = grown[np.isfinite(grown)]
    return float(np.median(known)) if len(known) else 1.0
