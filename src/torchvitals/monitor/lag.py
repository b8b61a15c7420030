"""`Lag`: what a rank measured on a device meets the other ranks' two monitored steps later.

The exchange needs numbers on the host, at a point that all ranks reach. Read in the step they
belong to, they would make the training wait until its device has done everything asked of it so
far. So they cross in a ring, and each monitored step exchanges those of the second last one, which
have arrived long since. Without a device nothing lags.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchvitals.monitor.ranks import Ranks
from torchvitals.monitor.recorder import Packet
from torchvitals.monitor.replicas import Checks
from torchvitals.monitor.ring import Crossing, Ring
from torchvitals.probes.probe import Distributions

STEPS = 2
"""Monitored steps from measuring to exchanging: how far a host usually runs ahead, and more."""


@dataclass(slots=True)
class Contribution:
    """What one rank has to say about a monitored step."""

    step: int
    time: float
    packet: Packet | None
    numbers: dict[str, float]
    bins: Distributions | None
    checks: Checks | None

    @property
    def parts(self) -> list[tuple[str, Any, Any]]:
        """What the probes measured."""
        return [] if self.packet is None else self.packet.parts


class Lag:
    """First in, first out. On the training thread."""

    def __init__(self, ring: Ring | None) -> None:
        self._ring = ring
        self._under_way: deque[Contribution | Crossing[Contribution]] = deque()

    @classmethod
    def agreed(cls, ranks: Ranks, ring: Ring | None) -> Lag:
        """The same on all ranks, or they would exchange different steps. A collective."""
        lags = ranks.gather({"lags": ring is not None and ring.awake})
        return cls(ring if any(one["lags"] for one in lags.value) else None)

    def pass_on(self, contribution: Contribution) -> Contribution | None:
        """Send it on its way; gives the one whose turn it is."""
        if self._ring is None:
            return contribution
        self._under_way.append(self._ring.send(contribution))
        return self._next() if len(self._under_way) > STEPS else None

    def rest(self) -> Iterator[Contribution]:
        """What is still under way, at the end."""
        while self._under_way:
            yield self._next()

    def _next(self) -> Contribution:
        found = self._under_way.popleft()
        return found.land() if isinstance(found, Crossing) else found
