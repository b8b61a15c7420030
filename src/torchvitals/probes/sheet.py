"""`Sheet`: columns that join when they are first seen, for probes of a few numbers a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from torchvitals.probes.probe import blank, to_float32
from torchvitals.record import Key


class Sheet:
    """Turns a dict a step into rows. What a step did not measure stays missing in its row."""

    def __init__(self) -> None:
        self.header: tuple[Key, ...] = ()
        self._places: dict[Key, int] = {}

    def rows(self, steps: Sequence[Mapping[Key, float]]) -> NDArray[np.float32]:
        """(steps, columns)."""
        fresh = dict.fromkeys(key for found in steps for key in found if key not in self._places)
        if fresh:
            self.header = (*self.header, *fresh)
            self._places = {key: place for place, key in enumerate(self.header)}
        table = blank((len(steps), len(self.header)))
        for row, found in zip(table, steps, strict=True):
            places = [self._places[key] for key in found]
            row[places] = to_float32(np.fromiter(found.values(), np.float64, len(found)))
        return table
