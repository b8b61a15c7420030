"""A series as the rest of this room wants it: finite float64 pairs, by ascending step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """The finite points of a curve, and what had to be left out."""

    steps: Array
    values: Array
    num_bad: int
    """Values that were NaN or Inf."""
    num_bad_last: int
    """Those of them after the last finite value: what a run that blew up ends with."""

    def __len__(self) -> int:
        return len(self.steps)


def clean(steps: ArrayLike, values: ArrayLike) -> Series:
    """Sort by step and drop what is not finite; of a step written twice (a resume) the later."""
    x = np.asarray(steps, dtype=np.float64).ravel()
    y = np.asarray(values, dtype=np.float64).ravel()
    if len(x) != len(y):
        raise ValueError(
            f"steps and values must be equally long, got {len(x)} and {len(y)}; "
            "pass both as one series gave them."
        )
    if not np.isfinite(x).all():
        raise ValueError("steps must be finite numbers, got NaN or Inf; drop those points first.")
    if len(x) > 1 and not (np.diff(x) > 0).all():
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
        last = np.append(np.diff(x) > 0, True)
        x, y = x[last], y[last]
    good = np.isfinite(y)
    num_bad = int(np.count_nonzero(~good))
    trailing = int(np.argmax(good[::-1])) if num_bad < len(y) else len(y)
    return Series(x[good], y[good], num_bad, trailing)
