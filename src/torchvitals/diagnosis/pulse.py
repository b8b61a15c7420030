"""`pulse`: whether a run that should go on does. Cheap enough to be asked every second."""

from __future__ import annotations

from torchvitals.record import Finding
from torchvitals.rules import stalled
from torchvitals.rules.run import Run
from torchvitals.rules.stored import Stored
from torchvitals.rules.thresholds import Thresholds


def pulse(
    history: Stored, *, thresholds: Thresholds | None = None, now: float | None = None
) -> Finding | None:
    """The finding of the rule `stalled` alone: the run hangs, or died; None while it is well."""
    return stalled.check(Run(history, now=now), thresholds or Thresholds.make(None))
