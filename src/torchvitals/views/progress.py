"""`progress_of`: how far a run is, and how long the rest will take.

Seconds a step are taken from the times of the rows, over the later half of the newest attempt: that
way evaluations and checkpoints between the steps count, and runs without clocks have it too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchvitals.store import History
from torchvitals.views.epochs import epochs_of
from torchvitals.views.lately import attempt_start

GAPS = 20
"""Rows over which the usual time between two rows is taken."""
SILENT_S, SILENT_GAPS = 15.0, 10.0
"""A run is called silent after so long, and after so many times the usual gap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands; None where it is not known."""

    step: int | None
    """The last step that ended."""
    total_steps: int | None
    epoch: int | None
    num_epochs: int | None
    steps_per_epoch: float | None
    step_s: float | None
    """Seconds a step, with everything between the steps."""
    row_gap_s: float | None
    """Usual seconds between two rows."""
    last_time: float | None
    """When the last row was measured."""
    eta_s: float | None
    """Seconds until the last step; None unless the run is running."""
    silent_s: float | None
    """Seconds since the last row, if that is unusually long for a run that is running."""

    @property
    def frac(self) -> float | None:
        """Share of the steps that are done."""
        if self.total_steps is None:
            return None
        return min((self.step or 0) / self.total_steps, 1.0)


def progress_of(history: History, *, stop: int | None = None, now: float) -> Progress:
    """How far the run is now, or was before step `stop`."""
    rows = history.times()
    inside = rows.steps >= attempt_start(history, stop=stop)
    if stop is not None:
        inside &= rows.steps < stop
    steps, times = rows.steps[inside], rows.times[inside]
    step_s = row_gap_s = None
    if len(steps) > 1:
        half = len(steps) // 2 - (len(steps) == 2)  # two rows have one gap
        step_s = max(float(times[-1] - times[half]), 0.0) / float(steps[-1] - steps[half])
        last = times[-GAPS - 1 :]
        row_gap_s = max(float(last[-1] - last[0]), 0.0) / (len(last) - 1)
    epochs = epochs_of(history, stop=stop)
    total = history.info.watch.get("total_steps")
    if not isinstance(total, int) or total < 1:
        total = None if epochs is None else epochs.total_steps
    done = done_step(history)
    found = Progress(
        step=done if stop is None or done is None else min(done, stop - 1),
        total_steps=total,
        epoch=None if epochs is None else epochs.current,
        num_epochs=None if epochs is None else epochs.num_epochs,
        steps_per_epoch=None if epochs is None else epochs.steps_per_epoch,
        step_s=step_s,
        row_gap_s=row_gap_s,
        last_time=float(times[-1]) if len(times) else None,
        eta_s=None,
        silent_s=None,
    )
    return ticked(found, now) if stop is None and history.status == "running" else found


def ticked(progress: Progress, now: float) -> Progress:
    """The same a little later, without looking at the run again.

    The time left runs down until the next row is due, and then waits for it.
    """
    eta_s = silent_s = None
    if progress.last_time is not None and progress.step_s is not None:
        waited, gap = max(now - progress.last_time, 0.0), progress.row_gap_s or 0.0
        left = (progress.total_steps or 0) - (progress.step or 0)
        if left > 0:
            eta_s = max(left * progress.step_s - min(waited, gap), 0.0)
        if waited > max(SILENT_S, SILENT_GAPS * gap):
            silent_s = waited
    return replace(progress, eta_s=eta_s, silent_s=silent_s)


def done_step(history: History) -> int | None:
    """The last step that ended: a sample of the machine belongs to the step under way."""
    last = history.last_step
    if last is None or {key.kind for key in history.row(last)} != {"machine"}:
        return last
    return last - 1 or None
