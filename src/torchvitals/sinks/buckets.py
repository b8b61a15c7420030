"""`Buckets`: our fixed bins as the finite, ascending buckets that trackers draw."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.bins import MAX_EXPONENT, ZERO_BIN, bounds
from torchvitals.record.row import Counts

FAR = float(2 ** (MAX_EXPONENT + 1))
"""Where the overflow bins are drawn to end."""


class Buckets(NamedTuple):
    """Bucket k holds `counts[k]` values in (`edges[k]`, `edges[k + 1]`]."""

    edges: NDArray[np.float64]
    counts: NDArray[np.float64]

    @property
    def middles(self) -> NDArray[np.float64]:
        """A value to stand for each bucket."""
        middles: NDArray[np.float64] = (self.edges[1:] + self.edges[:-1]) / 2
        # The bucket that ends at zero is mostly zeros.
        return np.where(self.edges[1:] == 0.0, 0.0, middles)


def buckets(counts: Counts) -> Buckets | None:
    """The bins from the first to the last that hold something; None when none does.

    Zeros have no width, and join the smallest negative values: (−2^−40, 0].
    """
    low, high = bounds()
    edges = np.clip(np.append(np.delete(low, ZERO_BIN), high[-1]), -FAR, FAR)
    numbers = counts.astype(np.float64)
    numbers[ZERO_BIN - 1] += numbers[ZERO_BIN]
    numbers = np.delete(numbers, ZERO_BIN)
    filled = np.flatnonzero(numbers)
    if not len(filled):
        return None
    first, last = int(filled[0]), int(filled[-1])
    return Buckets(edges[first : last + 2], numbers[first : last + 1])
