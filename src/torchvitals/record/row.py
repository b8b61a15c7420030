"""`Row`: what one step measured, and `HistogramRow`, its distributions.

A row's header is the tuple of its columns. Headers are shared between rows, so comparing them is
an identity check in the common case, and the store keeps each one once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.key import Key

Floats: TypeAlias = NDArray[np.float32]
Counts: TypeAlias = NDArray[np.uint32]

MISSING_BITS = np.uint32(0x7FC0_D15E)
"""Bit pattern of "not measured": a NaN with a payload, told apart from a measured NaN."""

MISSING = MISSING_BITS.view(np.float32)


def is_missing(values: Floats) -> NDArray[np.bool_]:
    """True where nothing was measured. A measured NaN is not missing."""
    return np.asarray(np.ascontiguousarray(values).view(np.uint32) == MISSING_BITS)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One step: `values[i]` belongs to `header[i]`. Rows of the same step add up to a wider one."""

    step: int
    time: float
    """Seconds since the epoch."""
    header: tuple[Key, ...]
    values: Floats


@dataclass(frozen=True, slots=True, eq=False)
class HistogramRow:
    """Counts in the fixed bins of `record.bins`, one line a site."""

    step: int
    time: float
    sites: tuple[tuple[str, str], ...]
    """(kind, site) of each line."""
    counts: Counts
    """Shape (len(sites), NUM_BINS)."""
