"""`sparkline`: a series as a line of blocks.

Each block shows the highest value of its stretch, so that no spike is lost; a stretch with a NaN or
an Inf in it is drawn as ``×``. Values that are all positive and span more than a factor of
`LOG_SPAN` are drawn on a log scale, zeros among them as the lowest block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import Key

if TYPE_CHECKING:
    from torchvitals.store import History

BLOCKS: Final = "▁▂▃▄▅▆▇█"
BAD: Final = "×"
LOG_SPAN: Final = 30.0


def sparkline(values: Sequence[float], bad: Sequence[bool] | None = None) -> str:
    """One character a value; `bad` marks those to be drawn as ``×``, besides NaN and Inf."""
    numbers = np.asarray(values, dtype=np.float64)
    broken = ~np.isfinite(numbers)
    if bad is not None:
        broken |= np.asarray(bad, dtype=bool)
    good = numbers[~broken]
    levels = np.zeros(len(numbers), dtype=np.int64)
    if len(good):
        levels[~broken] = _levels(good)
    return "".join(
        BAD if wrong else BLOCKS[level] for level, wrong in zip(levels, broken, strict=True)
    )


def _levels(values: NDArray[np.float64]) -> NDArray[np.int64]:
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.full(len(values), 0 if low == 0 else 3, dtype=np.int64)
    positive = values[values > 0]
    if low >= 0 and float(positive.max()) / float(positive.min()) > LOG_SPAN:
        floor = float(np.log(positive.min()))
        values = np.log(np.maximum(values, positive.min()))
        low, high = floor, float(values.max())
    share = (values / 2 - low / 2) / (high / 2 - low / 2)  # halves: high − low may overflow
    return np.minimum((share * len(BLOCKS)).astype(np.int64), len(BLOCKS) - 1)


def drawn(history: History, key: Key, width: int, *, stop: int | None = None) -> str:
    """The sparkline of a column, at most `width` characters; steps before `stop`."""
    found = history.envelope(key, points=width, stop=stop)
    # Where a stretch has no finite value its highest one is NaN, which is drawn as bad.
    return sparkline(found.high.tolist(), found.bad.tolist())
