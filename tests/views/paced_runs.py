"""Runs with clocks, speeds, samples of the machine, evaluations, epochs, ranks and categories."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.views.made_runs import INFO, START, healthy
from torchvitals.record import Event, Key, Row
from torchvitals.store import RunWriter

PHASES = {"data": 4, "forward": 31, "backward": 52, "optimizer": 9, "other": 3, "monitor": 1}
"""Per cent of a step of 0.31 s."""
STEP_S = 0.31
GB = 1e9

Change = Callable[[int, dict[Key, float]], None]


def paced(step: int, *, loss_seed: int = 0) -> dict[Key, float]:
    """An ordinary step of a run with everything in it, besides what `healthy` has."""
    noise = np.random.default_rng([loss_seed, step]).standard_normal()
    values = {
        **healthy(step),
        Key.scalar("loss"): 1.5 + 3.0 * (1 + step / 20) ** -0.5 + 0.02 * noise,
    }
    values[Key("clock", "step", "wall_s")] = STEP_S
    for phase, percent in PHASES.items():
        values[Key("clock", phase, "wall_s")] = STEP_S * percent / 100
    for stat, seconds in (("mean_s", STEP_S), ("p50_s", 0.30), ("p95_s", 0.42), ("max_s", 1.2)):
        values[Key("clock", "step", stat)] = seconds
    values[Key("clock", "data", "mean_s")] = 0.04 * STEP_S
    values[Key("clock", "data", "max_s")] = 0.1
    values[Key("speed", "run", "steps_per_s")] = 1 / STEP_S
    values[Key("speed", "run", "samples_per_s")] = 128 / STEP_S
    values[Key("speed", "run", "tokens_per_s")] = 128 * 128 / STEP_S
    values[Key("speed", "run", "flops_per_s")] = 1.2e12
    values[Key("speed", "run", "mfu")] = 0.41
    values[Key("noise", "run", "noise_scale")] = 1230.0
    values[Key("noise", "run", "batch_size")] = 128.0
    if step % 5 == 1:
        values |= machine()
    if step % 100 == 0:
        values[Key("eval", "val", "loss")] = 1.6 + 300.0 / (100 + step)
        values[Key("eval", "val", "accuracy")] = 0.9 - 40.0 / (100 + step)
    return values


def machine(*, rss: float = 1.2 * GB) -> dict[Key, float]:
    """A sample."""
    return {
        Key("machine", "process", "rss_bytes"): rss,
        Key("machine", "process", "peak_rss_bytes"): 1.5 * GB,
        Key("machine", "process", "cpu_frac"): 1.7,
        Key("machine", "system", "memory_frac"): 0.43,
        Key("machine", "system", "memory_total_bytes"): 16 * GB,
        Key("machine", "gpu0", "peak_bytes"): 12 * GB,
        Key("machine", "gpu0", "used_bytes"): 11.2 * GB,
        Key("machine", "gpu0", "total_bytes"): 24 * GB,
    }


def write_steps(
    writer: RunWriter,
    steps: Iterable[int],
    values_of: Callable[[int], Mapping[Key, float]],
    *,
    start: float = START,
    gap_s: float = STEP_S,
) -> None:
    """Rows `gap_s` apart."""
    for step in steps:
        values = values_of(step)
        numbers = np.array(list(values.values()), dtype=np.float32)
        writer.append(Row(step, start + gap_s * step, tuple(values), numbers))


def make_paced(
    path: Path,
    *,
    num_steps: int = 300,
    change: Change | None = None,
    status: str = "finished",
    events: Iterable[Event] = (),
    clock: Callable[[], float] | None = None,
    **watch: Any,
) -> Path:
    """A whole run of `paced` steps."""

    def values_of(step: int) -> dict[Key, float]:
        values = paced(step)
        if change is not None:
            change(step, values)
        return values

    info = replace(INFO, name=path.name, watch={"every": 1, **watch})
    with RunWriter.create(path, info, **({} if clock is None else {"clock": clock})) as writer:
        write_steps(writer, range(1, num_steps + 1), values_of)
        for event in events:
            writer.event(event)
        writer.close(status)
    return path


def epoch_events(begins: Mapping[int, int], epochs: int | None = None) -> list[Event]:
    """Epoch number → the step after which it began."""
    more = {} if epochs is None else {"epochs": epochs}
    return [
        Event(step, START, "epoch", f"epoch {number} begins", {"epoch": number, **more})
        for number, step in begins.items()
    ]
