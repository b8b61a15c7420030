"""`Joining`: several rows of a step become one.

What is measured and what is logged arrive as rows of their own, some time apart. A step is complete
when a later one was heard of a whole tick ago; what still comes for it then makes a row of its own.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Key, Row


class Joining:
    """Holds rows until their steps are complete."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[float, dict[Key, float]]] = {}
        self._before = -1
        """Steps before this one were complete at the last tick."""

    def add(self, row: Row) -> None:
        """Take a row in; a column that comes twice has its newest value."""
        _, values = self._open.setdefault(row.step, (row.time, {}))
        values.update(zip(row.header, row.values.tolist(), strict=True))

    def tick(self) -> list[Row]:
        """The steps that are complete, in order."""
        done = [step for step in self._open if step < self._before]
        self._before = max(self._open, default=self._before)
        return self._take(done)

    def rest(self) -> list[Row]:
        """Everything."""
        return self._take(list(self._open))

    def _take(self, steps: list[int]) -> list[Row]:
        rows = []
        for step in sorted(steps):
            time, values = self._open.pop(step)
            numbers = np.fromiter(values.values(), np.float64, len(values)).astype(np.float32)
            rows.append(Row(step, time, tuple(values), numbers))
        return rows
