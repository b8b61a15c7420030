"""The injected faults, in the order and with the numbers of the catalogue."""

from __future__ import annotations

from torchvitals.testing.fault import Fault
from torchvitals.testing.faults import losses, precision, rates, samples, shocks, starts, wiring

_ROOMS = (losses, precision, rates, samples, shocks, starts, wiring)


def _all() -> dict[int, type[Fault]]:
    found = {}
    for room in _ROOMS:
        for thing in vars(room).values():
            if isinstance(thing, type) and issubclass(thing, Fault) and thing.number:
                found[thing.number] = thing
    return dict(sorted(found.items()))


FAULTS = _all()
"""By number."""
