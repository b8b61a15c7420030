"""`outlook_of`: which way the loss goes, and where it will be at the last step."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from torchvitals.curves import forecast, trend_of
from torchvitals.record import Key
from torchvitals.store import History

LONG = 1000
"""Steps a loss must span before its change in 1,000 steps is more than an extrapolation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Where the loss is heading."""

    word: str
    """falling, flat or rising lately, or unknown."""
    change_per_1000: float | None
    """Relative change in 1,000 steps; None for a shorter run."""
    at: int | None
    """The step that is forecast; None when there is none, or no forecast to be trusted."""
    value: float | None
    low: float | None
    """The 90 % band."""
    high: float | None


def outlook_of(
    history: History, key: Key | None, *, stop: int | None = None, total: int | None = None
) -> Outlook | None:
    """Of the column `key`, at step `total` if that is still to come. None without a loss."""
    if key is None:
        return None
    steps, values = history.series(key, stop=stop)
    if not len(steps):
        return None
    lately = trend_of(steps, values)
    long = int(steps[-1]) - int(steps[0]) >= LONG
    ahead = None
    if total is not None and total > steps[-1]:
        ahead = forecast(steps, values, at=total)
        if not ahead.confident:
            ahead = None
    return Outlook(
        word=lately.word,
        change_per_1000=lately.change_per_1000
        if long and isfinite(lately.change_per_1000)
        else None,
        at=None if ahead is None else total,
        value=None if ahead is None else ahead.value,
        low=None if ahead is None else ahead.low,
        high=None if ahead is None else ahead.high,
    )
