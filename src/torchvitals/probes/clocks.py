"""Where the time of a step goes: waiting for data, forward, backward, optimizer, the rest.

A step lasts from the end of the optimizer's last step to the end of this one. Events cut it into
stretches, and each stretch belongs to one phase:

    data        from asking `monitor.data(loader)` for a batch until it is there
    forward     from the call of the model (or the batch's arrival) until `backward()` begins: the
                loss belongs to it
    backward    inside `backward()`
    optimizer   inside `optimizer.step()`
    monitor     inside the monitor's own hooks
    other       everything else: clipping, logging, evaluation, moving data to a device

Phases are told apart in monitored steps; in the others only waiting for data and the step's length
are on the clock. On a CPU these are readings of a monotonic clock. On a CUDA device monitored steps
record an event at each cut; events are read later, off the training thread, and nothing waits.

    clock/<phase>/wall_s         seconds of the monitored step
    clock/step/mean_s, p50_s, p95_s, max_s     over all steps since the last row (percentiles, by
                                 nearest rank: the last 512), monitored or not
    clock/data/mean_s, max_s     the same of the waiting
    speed/run/steps_per_s, samples_per_s, tokens_per_s     over all steps since the last row
    speed/run/flops_per_s, mfu   model FLOPs a second, and their share of the device's peak
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchvitals.probes.probe import Distributions, Notes, blank
from torchvitals.record import Key

PHASES = ("data", "forward", "backward", "optimizer", "other", "monitor")
DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER, MONITOR = range(len(PHASES))

RECENT = 512
"""Steps that percentiles are taken over."""

SPEEDS = ("steps_per_s", "samples_per_s", "tokens_per_s", "flops_per_s", "mfu")
HEADER = (
    Key("clock", "step", "wall_s"),
    *(Key("clock", phase, "wall_s") for phase in PHASES),
    *(Key("clock", "step", stat) for stat in ("mean_s", "p50_s", "p95_s", "max_s")),
    *(Key("clock", "data", stat) for stat in ("mean_s", "max_s")),
    *(Key("speed", "run", stat) for stat in SPEEDS),
)
FIRST_SPEED = len(HEADER) - len(SPEEDS)


@dataclass(slots=True)
class Amount:
    """How much was trained on; 0 where it is not known."""

    samples: int = 0
    tokens: int = 0

    def add(self, samples: int, tokens: int) -> None:
        """Take more in."""
        self.samples += samples
        self.tokens += tokens


@dataclass(slots=True)
class ClockRaw:
    """The clocks of a monitored step, and of all steps since the one before."""

    phases: list[float]
    """Seconds of each of `PHASES` in this step, by the host's clock."""
    cuts: list[tuple[int, Any]]
    """On a device: (phase that ended there, event); the first one begins the step."""
    walls: list[float]
    """Seconds of each step since the last row."""
    waits: list[float]
    """Seconds each of them waited for data."""
    recent: list[float]
    total: Amount
    flops: float
    """Of the model in one step; NaN while not known."""
    peak_flops: float
    """Of the device a second; NaN where it is not known."""


class Clocks:
    """Cuts every step into phases. A cut costs a reading of the clock and an addition."""

    header = HEADER

    def __init__(
        self,
        *,
        clock: Callable[[], float] = perf_counter,
        make_event: Callable[[], Any] | None = None,
    ) -> None:
        self._clock = clock
        self._make_event = make_event
        """Gives an event recorded on the device's stream; None on a CPU."""
        self._cuts: list[tuple[int, Any]] | None = None
        self._done_cuts: list[tuple[int, Any]] = []
        self._phases = [0.0] * len(PHASES)
        self._done = self._phases
        self._begin = self._since = clock()
        self._started = False
        self._walls: list[float] = []
        self._waits: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._seen, self._given, self._total = Amount(), Amount(), Amount()
        self._usual = Amount()
        self.flops = float("nan")
        self.peak_flops = float("nan")

    def cut(self, phase: int) -> None:
        """What went on until now was that phase."""
        now = self._clock()
        self._phases[phase] += now - self._since
        self._since = now
        if self._cuts is not None and self._make_event is not None:
            self._cuts.append((phase, self._make_event()))

    def move(self, seconds: float, source: int) -> None:
        """Our own work inside a phase is the monitor's."""
        self._phases[source] -= seconds
        self._phases[MONITOR] += seconds

    fed = False
    """Batches come through `monitor.data()`: there is no need to look at the model's inputs."""

    def saw(self, samples: int, tokens: int) -> None:
        """A batch went by."""
        self._seen.add(samples, tokens)

    def given(self, samples: int, tokens: int) -> None:
        """The user says how much is in the step: better than what was seen."""
        self._given.add(samples, tokens)

    @property
    def num_samples(self) -> int:
        """Of the last step; 0 where it is not known."""
        return self._usual.samples

    def end_step(self, *, again: bool) -> None:
        """The step ended at the last cut; `again`: the next one is monitored."""
        now, seen, given = self._since, self._seen, self._given
        if given.samples or given.tokens:
            self._usual = Amount(given.samples or seen.samples, given.tokens or seen.tokens)
            self._seen, self._given = Amount(), Amount()
        elif seen.samples:
            self._usual, self._seen = seen, Amount()
        # A step nobody looked into is like the one before.
        if self._started:
            wall = now - self._begin
            self._walls.append(wall)
            self._waits.append(self._phases[DATA])
            self._recent.append(wall)
            self._total.add(self._usual.samples, self._usual.tokens)
        # The first step began before anybody looked: its length is not known.
        self._begin, self._started = now, True
        self._done, self._phases = self._phases, [0.0] * len(PHASES)
        if self._make_event is not None:
            self._done_cuts = self._cuts or []
            self._cuts = [(OTHER, self._make_event())] if again else None

    def last(self) -> dict[str, float]:
        """The last step in short."""
        wall = self._recent[-1] if self._recent else float("nan")
        return {"step_s": wall, "data_s": self._done[DATA]}

    def take(self) -> ClockRaw:
        """What was gathered since the last monitored step; called right after its end."""
        raw = ClockRaw(
            phases=self._done,
            cuts=self._done_cuts,
            walls=self._walls,
            waits=self._waits,
            recent=list(self._recent),
            total=self._total,
            flops=self.flops,
            peak_flops=self.peak_flops,
        )
        self._walls, self._waits, self._total = [], [], Amount()
        return raw

    def take_bins(self) -> Distributions:
        """None: clocks have no distributions."""
        return []

    def shape(self, _raw: ClockRaw) -> Hashable:
        """All steps are alike."""
        return ()

    def values(self, raws: Sequence[ClockRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        return np.stack([columns_of(raw) for raw in raws])


def columns_of(raw: ClockRaw) -> NDArray[np.float32]:
    """The columns of one step."""
    out = blank(len(HEADER))
    if not raw.walls or not sum(raw.walls) > 0:
        return out
    phases = device_phases(raw.cuts) if len(raw.cuts) > 1 else raw.phases
    recent, num, seconds = sorted(raw.recent), len(raw.walls), sum(raw.walls)
    flops = raw.flops * num / seconds
    # Plain Python: for a few hundred numbers it is several times as fast as numpy.
    out[:FIRST_SPEED] = (
        sum(phases), *phases,
        seconds / num, recent[len(recent) // 2], recent[-(-95 * len(recent) // 100) - 1],
        max(raw.walls), sum(raw.waits) / num, max(raw.waits),
    )  # fmt: skip
    rates = (
        num / seconds,
        raw.total.samples / seconds,
        raw.total.tokens / seconds,
        flops,
        flops / raw.peak_flops,
    )
    for place, rate in enumerate(rates, start=FIRST_SPEED):
        if rate > 0:  # what is not known is not zero
            out[place] = rate
    return out


def device_phases(cuts: Sequence[tuple[int, Any]]) -> list[float]:
    """Seconds of each phase by the device's events. Waits for the last of them."""
    cuts[-1][1].synchronize()
    phases = [0.0] * len(PHASES)
    for (_, before), (phase, event) in pairwise(cuts):
        phases[phase] += before.elapsed_time(event) / 1e3
    return phases


def cuda_event() -> Any:
    """An event on the current stream, to be read later."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
