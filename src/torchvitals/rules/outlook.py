"""Whether going on is worth it: by the forecast of the loss, and by the validation series.

For rules that have fired already, to give their advice numbers; it never decides whether one does.
It is made once a look and takes 50 ms, for 100,000 losses 0.1 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchvitals.curves import forecast
from torchvitals.curves.doubt import HIDDEN
from torchvitals.record import Evidence, Key
from torchvitals.rules.rule import evidence
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.table import Line

FEW = 20
"""Draws that are enough for a value without its band."""
LATELY = 2
"""A best validation loss among so many last evaluations still improves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The loss to expect; `value` is NaN, with a `reason`, where that is not known."""

    at: int
    """The step that was forecast."""
    is_planned: bool
    """It is the last one; otherwise as far again as the run is."""
    now: float
    """The same curve at the last step: a level without the noise of a single batch."""
    value: float
    low: float
    """The 90 % band."""
    high: float
    reason: str
    key: Key

    @property
    def is_known(self) -> bool:
        """Whether there is a number to go by."""
        return math.isfinite(self.value)

    @property
    def gain(self) -> float:
        """Share of the loss that is expected to go; NaN when that is not known."""
        return 1.0 - self.value / self.now if self.now > 0 else math.nan

    @property
    def sentence(self) -> str:
        """For the explanation, with a blank before it; empty when nothing is known."""
        return f" The forecast: {self._words}." if self.is_known else ""

    @property
    def evidence(self) -> Evidence:
        """The same beside the other numbers, or why there is none."""
        if not self.is_known:
            return evidence(f"where it goes from here can't be forecast: {self.reason}", self.key)
        text = f"forecast: {self._words}"
        return evidence(text, self.key, step=self.at, value=self.value)

    @property
    def _words(self) -> str:
        band = f"{num(self.value)} ({num(self.low)} … {num(self.high)})"
        here = num(self.now)
        if here == num(self.value):
            moves, by = f"stay at {band}", "until"
        else:
            moves, by = f"get from {here} to {band}", "by"
        last = f"{by} its last step, {self.at:,}"
        until = last if self.is_planned else f"in as many steps again, {by} step {self.at:,}"
        return f"the {self.key.site} will {moves} {until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Where the validation loss was best."""

    step: int
    value: float
    num_since: int
    """Evaluations since then."""
    key: Key

    @property
    def improves(self) -> bool:
        """Whether it still gets better."""
        return self.num_since < LATELY

    @property
    def evidence(self) -> Evidence:
        """In words."""
        when = "and still falls" if self.improves else f"{self.num_since} evaluations ago"
        text = f"the validation loss was best at step {self.step:,} ({num(self.value)}), {when}"
        return evidence(text, self.key, step=self.step, value=self.value)


def outlook(run: Run, off: float) -> Outlook:
    """Of the training loss at the last planned step; as far again where none is known to come.

    `off`: the share by which the loss may lie off the curve that is forecast.
    """
    return run.keep("outlook", lambda: _outlook(run, off))


def validation(run: Run) -> Validation | None:
    """None with fewer than three evaluations."""
    line = run.validation_loss.finite
    if len(line) < 3:
        return None
    at = int(np.argmin(line.values))
    return Validation(
        step=int(line.steps[at]),
        value=float(line.values[at]),
        num_since=len(line) - 1 - at,
        key=Key("eval", run.validation_split or "val", "loss"),
    )


def _outlook(run: Run, off: float) -> Outlook:
    total, last = run.total_steps, run.last_step
    planned = total is not None and total > last
    at = total if total is not None and planned else last + max(last - run.first_step, 1)
    key = Key.scalar(run.loss.name)
    # Not the line the rules read: of a long run that one keeps every peak, which lifts its level.
    whole = run.whole(key)
    ahead, line = forecast(whole.steps, whole.values, at), whole.finite
    reason = ahead.reason
    if reason == HIDDEN and ahead.high - ahead.low <= off * abs(ahead.value):
        reason = ""  # a little noise without a trend: it stays where it is
    if not reason and _is_off(line, off):
        reason = "lately the loss is not on the curve that fits the rest of it"
    return Outlook(
        at=at,
        is_planned=planned,
        now=math.nan if reason else _fitted(line, last),
        value=math.nan if reason else ahead.value,
        low=ahead.low,
        high=ahead.high,
        reason=reason,
        key=key,
    )


def _is_off(line: Line, most: float) -> bool:
    """Whether one of the last two fifths lies so far off the curve: a step, or a turn, at the end.

    The fit of a whole run may pass for good where it misses the end, and that is what matters.
    """
    size = max(len(line) // 5, 1)
    for some in (slice(-2 * size, -size), slice(-size, None)):
        level, curve = np.median(line.values[some]), _fitted(line, float(line.steps[some].mean()))
        if abs(level - curve) > most * abs(curve):
            return True
    return False


def _fitted(line: Line, at: float) -> float:
    return forecast(line.steps, line.values, at, draws=FEW).value
