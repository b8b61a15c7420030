"""What `History` gives back: plain tuples of numpy arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.row import Counts, Floats
from torchvitals.store.codec import Ints, Times


class Series(NamedTuple):
    """One column over time: ``steps, values = history.series("loss")``."""

    steps: Ints
    values: Floats


class StepTimes(NamedTuple):
    """When each step was stored, in seconds since the epoch."""

    steps: Ints
    times: Times


class Matrix(NamedTuple):
    """One stat of many sites: `values[i, j]` at `steps[i]`, `sites[j]`; NaN where missing."""

    steps: Ints
    sites: list[str]
    values: Floats


class Histogram(NamedTuple):
    """One site's counts at one step, in the bins of `record.bins`."""

    step: int
    counts: Counts


class Histograms(NamedTuple):
    """One site's counts at all steps: shape (steps, NUM_BINS)."""

    steps: Ints
    counts: Counts


class Envelope(NamedTuple):
    """A series in buckets of about equal numbers of values."""

    steps: Ints
    """First step of the bucket."""
    low: Floats
    """Lowest finite value; NaN when the bucket has none."""
    high: Floats
    last: Floats
    """Last value, finite or not."""
    bad: NDArray[np.bool_]
    """A NaN, +Inf or −Inf is in the bucket."""
    count: Ints  # type: ignore[assignment]  # tuple.count, which nobody misses here
    flags: NDArray[np.uint8]
    """Which of them: `HAS_NAN`, `HAS_INF`, `HAS_MINUS_INF` of `store.pyramid`, added up."""


class Buckets(NamedTuple):
    """One stat of many sites in buckets of steps; all but the first two: shape (steps, sites)."""

    steps: Ints
    """First step of the bucket."""
    sites: list[str]
    low: Floats
    """Lowest finite value; NaN when the bucket has none."""
    high: Floats
    last: Floats
    """Last value, finite or not."""
    flags: NDArray[np.uint8]
    """What is not finite, as in `Envelope`."""
    count: Ints  # type: ignore[assignment]
    """Values that were measured."""
