"""`Sheet`: a table of dicts, for probes of a few numbers a step.

Columns that nobody told of join when they are first seen. Each time that gives rows another layout
in the file: probes that know their columns say so at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchvitals.probes.probe import blank, to_float32
from torchvitals.record import Key


class Sheet:
    """Turns a dict a step into rows. What a step did not measure stays missing in its row."""

    def __init__(self, header: Iterable[Key] = ()) -> None:
        self.header: tuple[Key, ...] = tuple(header)
        self._places = {key: place for place, key in enumerate(self.header)}

    def rows(self, steps: Sequence[Mapping[Key, float]]) -> NDArray[np.float32]:
        """(steps, columns)."""
        fresh = dict.fromkeys(key for found in steps for key in found if key not in self._places)
        if fresh:
            self.header = (*self.header, *fresh)
            self._places = {key: place for place, key in enumerate(self.header)}
        table = blank((len(steps), len(self.header)))
        for row, found in zip(table, steps, strict=True):
            if not found:
                continue
            places = [self._places[key] for key in found]
            row[places] = to_float32(np.fromiter(found.values(), np.float64, len(found)))
        return table
