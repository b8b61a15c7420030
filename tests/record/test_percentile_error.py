"""The table of percentile errors in docs/statistics.md, measured again.

`python tests/record/test_percentile_error.py` prints the table for the page.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.bins import NUM_BINS, bin_index, percentiles

PAGE = Path(__file__).parents[2] / "docs" / "statistics.md"
Q = (50, 75, 95, 99)
SIZE = 65_536
SCALES = 24
"""The same data at this many places between two powers of two: bins are not scale-free inside."""

Draw = Callable[[np.random.Generator], NDArray[np.float64]]
DATA: dict[str, Draw] = {
    "normal": lambda rng: rng.standard_normal(SIZE),
    "log-normal": lambda rng: rng.lognormal(size=SIZE),
    "uniform": lambda rng: rng.uniform(-1, 1, SIZE),
    "Laplace": lambda rng: rng.laplace(size=SIZE),
    "Student-t, 3 degrees": lambda rng: rng.standard_t(3, SIZE),
    "normal after ReLU": lambda rng: np.maximum(rng.standard_normal(SIZE), 0),
    "normal, 1 ± 0.1": lambda rng: 1 + 0.1 * rng.standard_normal(SIZE),
}


def errors(draw: Draw) -> NDArray[np.float64]:
    """Per cent, (SCALES, len(Q)): |estimate − exact| / max(|exact|, half the interquartile range).

    The second term gives the median of data around zero a scale to be measured by.
    """
    rng = np.random.default_rng(2)
    out = np.empty((SCALES, len(Q)))
    for line in range(SCALES):
        x = draw(rng) * 2 ** (line / SCALES)
        counts = np.bincount(bin_index(x), minlength=NUM_BINS)
        exact = np.percentile(x, Q)
        spread = np.subtract(*np.percentile(x, [75, 25])) / 2
        got = percentiles(counts, Q, x.min(), x.max())
        out[line] = 100 * np.abs(got - exact) / np.maximum(np.abs(exact), spread)
    return out


def table() -> list[str]:
    lines = ["| data | " + " | ".join(f"p{q}" for q in Q) + " |", "|---" * (len(Q) + 1) + "|"]
    for name, draw in DATA.items():
        error = errors(draw)
        cells = zip(np.median(error, axis=0), error.max(axis=0), strict=True)
        lines.append(f"| {name} | " + " | ".join(f"{a:.1f} / {b:.1f}" for a, b in cells) + " |")
    return lines


def test_page_states_the_measured_errors() -> None:
    text = PAGE.read_text()
    for line in table():
        assert line in text, f"docs/statistics.md lacks the line {line!r}"


if __name__ == "__main__":
    print("\n".join(table()))
