"""`epochs_of`: which epoch it is, how many there will be, how many steps one takes.

An epoch's beginning is an event, its end a row. Where the training says how many epochs there are,
one that has ended is enough to tell when all will have.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import median

from torchvitals.record import Key
from torchvitals.store import History

ENDS = Key("epoch", "run", "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Epochs:
    """The epochs of a run so far."""

    current: int
    """As the training counts them, from 0 or from 1."""
    num_epochs: int | None
    steps_per_epoch: float | None
    total_steps: int | None


def epochs_of(history: History, *, stop: int | None = None) -> Epochs | None:
    """None when the training does not speak of epochs."""
    events = [
        event
        for event in history.events("epoch")
        if isinstance(event.data.get("epoch"), int) and (stop is None or event.step < stop)
    ]
    if not events:
        return None
    begins: dict[int, int] = {}
    for event in events:
        # An epoch that a resumed run enters again has begun where it began first.
        begins.setdefault(event.data["epoch"], event.step)
    ends = {number - 1: step for number, step in begins.items()}
    if ENDS in history.keys("epoch"):
        steps, numbers = history.series(ENDS, stop=stop)
        ends |= {int(n): int(s) for s, n in zip(steps, numbers, strict=True) if isfinite(n)}
    lengths = [ends[n] - begin for n, begin in begins.items() if ends.get(n, begin) > begin]
    current, last = int(events[-1].data["epoch"]), events[-1].data.get("epochs")
    num_epochs = last if isinstance(last, int) and last > 0 else None
    each = float(median(lengths)) if lengths else None
    total = None
    if num_epochs is not None and each is not None:
        first = 0 if min(begins) == 0 else 1
        left = num_epochs - (current - first)
        total = round(begins[current] + left * each)
    return Epochs(current=current, num_epochs=num_epochs, steps_per_epoch=each, total_steps=total)
