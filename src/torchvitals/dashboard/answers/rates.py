"""Jumps of the learning rate, as events: nobody stores them, the schedule just makes them.

A jump is a change by 30 % or more from one measured step to the next while the steps beside it
change little: a step of a staircase, a plateau scheduler, a restart. Warm-ups and smooth decays
change at every step and make no events.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from torchvitals.record.row import Floats
from torchvitals.store import History

JUMP: Final = np.log(1.3)
BESIDE: Final = 4
"""Changes on either side that must be small..."""
CALM: Final = 0.25
"""... at most this share of the jump."""
MOST_GROUPS: Final = 8
MOST_JUMPS: Final = 50


def rate_events(history: History) -> list[dict[str, Any]]:
    """One event a step at which rates jumped; groups that jump alike are one."""
    jumps: dict[tuple[int, str], list[str]] = {}
    for key in history.keys("optimizer", stat="lr")[:MOST_GROUPS]:
        steps, values = history.series(key)
        for at in jumps_of(values):
            text = f"{values[at - 1]:.3g} → {values[at]:.3g}"
            jumps.setdefault((int(steps[at]), text), []).append(key.site)
    if not jumps:
        return []
    when = history.times("optimizer")
    times = dict(zip(when.steps.tolist(), when.times.tolist(), strict=True))
    return [
        {"step": step, "time": times[step], "kind": "lr", "data": {"groups": groups},
         "text": text if len(groups) > 1 else f"{text} ({groups[0]})"}
        for (step, text), groups in sorted(jumps.items())[:MOST_JUMPS]
    ]  # fmt: skip


def jumps_of(values: Floats) -> list[int]:
    """Positions of values that differ from the one before, where the others change little."""
    if len(values) < 3:
        return []
    with np.errstate(all="ignore"):
        change = np.abs(np.diff(np.log(np.maximum(values.astype(np.float64), 1e-12))))
    change[~np.isfinite(change)] = 0.0
    found = []
    for at in np.flatnonzero(change > JUMP):
        before, after = change[max(at - BESIDE, 0) : at], change[at + 1 : at + 1 + BESIDE]
        # The first steps of a warm-up have nothing before them.
        if len(before) and max(before.max(), after.max(initial=0.0)) <= CALM * change[at]:
            found.append(int(at) + 1)
    return found
