"""`pace_of`: the vital signs beside the tensors: speed, where the time goes, memory, what is left.

Everything is as it was lately (`views.lately`), and None where it was not measured: runs of older
versions have nothing but the loss, the learning rate and the times of their rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchvitals.curves import recognise
from torchvitals.record import Key
from torchvitals.store import History
from torchvitals.views.evaluations import Evaluation, evaluations
from torchvitals.views.lately import Lately
from torchvitals.views.layers import SPARK_WIDTH
from torchvitals.views.listing import loss_key
from torchvitals.views.memory import Memory, memory_of
from torchvitals.views.outlook import Outlook, outlook_of
from torchvitals.views.progress import Progress, progress_of
from torchvitals.views.stragglers import SlowestRank, slowest_rank

PHASES: Final = ("data", "forward", "backward", "optimizer", "other", "monitor")
"""Of a step, in the order in which they are drawn."""

STEP_MEAN = Key("clock", "step", "mean_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Plain data; shares are 0 … 1, times seconds."""

    progress: Progress
    step_s: float | None
    """Median of the last steps, measured or not."""
    step_p95_s: float | None
    steps_per_s: float | None
    samples_per_s: float | None
    tokens_per_s: float | None
    flops: float | None
    """Of the model in one step."""
    flops_per_s: float | None
    mfu: float | None
    """Share of the device's peak FLOPs."""
    shares: dict[str, float]
    """Phase → share of a measured step, the monitor's own among them; empty without clocks."""
    data_frac: float | None
    """Share of all steps' time spent waiting for data."""
    memory: Memory | None
    evaluations: list[Evaluation]
    outlook: Outlook | None
    """Of the loss."""
    schedule: str | None
    """The learning rate of the first group in words."""
    slowest_rank: SlowestRank | None
    noise_scale: float | None
    """The batch size, in the unit of `batch_size`, at which half of a step is noise."""
    batch_size: float | None


def pace_of(
    history: History, *, stop: int | None = None, now: float, spark_width: int = SPARK_WIDTH
) -> Pace:
    """The pace of a run now, or as it was before step `stop`."""
    lately = Lately.of(history, stop=stop)
    progress = progress_of(history, stop=stop, now=now)

    def speed(stat: str) -> float | None:
        return lately.rate(Key("speed", "run", stat), STEP_MEAN)

    # A finished run goes nowhere from here, however many steps were planned.
    over = stop is None and history.status == "finished"
    ahead = None if over else progress.total_steps
    waited = lately.total(Key("clock", "data", "mean_s"))
    spent = lately.total(STEP_MEAN)
    return Pace(
        progress=progress,
        step_s=lately.last(Key("clock", "step", "p50_s")),
        step_p95_s=lately.last(Key("clock", "step", "p95_s")),
        steps_per_s=speed("steps_per_s"),
        samples_per_s=speed("samples_per_s"),
        tokens_per_s=speed("tokens_per_s"),
        flops=_flops(history, stop),
        flops_per_s=speed("flops_per_s"),
        mfu=speed("mfu"),
        shares=_shares(lately),
        data_frac=waited / spent if waited is not None and spent else None,
        memory=memory_of(lately),
        evaluations=evaluations(history, stop=stop, spark_width=spark_width),
        outlook=outlook_of(history, loss_key(history), stop=stop, total=ahead),
        schedule=_schedule(history, stop),
        slowest_rank=slowest_rank(history, stop=stop),
        noise_scale=lately.last(Key("noise", "run", "noise_scale")),
        batch_size=lately.last(Key("noise", "run", "batch_size")),
    )


def _shares(lately: Lately) -> dict[str, float]:
    spent = {phase: lately.total(Key("clock", phase, "wall_s")) for phase in PHASES}
    # Work that hooks do inside a phase is taken out of it, which may leave less than nothing.
    known = {phase: max(seconds, 0.0) for phase, seconds in spent.items() if seconds is not None}
    whole = sum(known.values())
    return {phase: seconds / whole for phase, seconds in known.items()} if whole > 0 else {}


def _flops(history: History, stop: int | None) -> float | None:
    counted = [
        event.data["flops"]
        for event in history.events("flops")
        if (stop is None or event.step < stop) and isinstance(event.data.get("flops"), int | float)
    ]
    return float(counted[-1]) if counted else None


def _schedule(history: History, stop: int | None) -> str | None:
    rates = history.keys("optimizer", stat="lr")
    if not rates:
        return None
    steps, values = history.series(rates[0], stop=stop)
    return recognise(steps, values).explain if len(steps) else None
