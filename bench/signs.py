"""What the signs beyond tensors cost (clocks, throughput, machine), and whether the clocks add up.

    python bench/signs.py [--workloads W1,W3] [--seconds 10] [--rounds 3]

- "inside": time in our own callbacks on the training thread (loader, the model's call, backward,
  the optimizer's hooks), read by a clock around each of them in the real training, signs on less
  signs off, every 10th step monitored (the default). What the clock sees of an empty call is taken
  off. All tensor probes are off.
- "threads beside": CPU time of the recorder and of the machine's sampler, on less off.
- "sum / wall": the phases of all steps together, every step monitored, against one clock around the
  loop.
- "a sample of the machine" and "a forecast": processor time of one, apart from any training.
Limits: W1 0.3 % of a step, W3 60 µs a step; sum / wall within 2 %; a sample 1 ms. Medians of the
rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchvitals
from torchvitals.curves import forecast
from torchvitals.monitor.monitor import Monitor
from torchvitals.monitor.pace import Pace
from torchvitals.probes.clocks import PHASES, Clocks
from torchvitals.probes.machine import MachineSampler
from workloads import WORKLOADS, Training

SILENT: dict[str, Any] = {
    "activations": False,
    "gradients": False,
    "parameters": False,
    "updates": False,
    "optimizer_state": False,
    "histograms": False,
}
OURS = (
    (Clocks, "cut"),
    (Clocks, "saw"),
    (Pace, "_model_called"),
    (Pace, "_backward_ends"),
    (Monitor, "_finish_step"),
)
"""Callbacks that run on the training thread; those inside another are not counted twice."""

SAMPLE_LIMIT_S = 1e-3

WARM_UP = 11
"""Steps before the clock starts: the count of FLOPs and the first monitored step are among them."""

TYPICAL = {"W1": 0.5, "W2": 1.0, "W3": 0.025, "W4": 1.1}

LIMITS = {"W1": (0.003, None), "W3": (None, 60e-6)}
"""(share of a step, seconds a step)."""


class Meter:
    """Adds up the time inside the callbacks."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.calls = 0
        self._inside = False

    @contextmanager
    def around(self, names: tuple[tuple[type, str], ...]) -> Iterator[None]:
        originals = [(cls, name, getattr(cls, name)) for cls, name in names]
        for cls, name, function in originals:
            setattr(cls, name, self._timed(function))
        try:
            yield
        finally:
            for cls, name, function in originals:
                setattr(cls, name, function)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent += time.perf_counter() - begun
                self.calls += 1
                self._inside = False

        return timed


def empty_call_s() -> float:
    """What the meter sees of a function that does nothing."""

    class Nothing:
        def nothing(self) -> None:
            pass

    meter = Meter()
    with meter.around(((Nothing, "nothing"),)):
        nothing = Nothing()
        for _ in range(20_000):
            nothing.nothing()
    return meter.spent / meter.calls


@dataclass
class Turn:
    """What a stretch of steps showed, a step."""

    step_s: float
    inside_s: float
    beside_s: float
    sum_over_wall: float


def measure(name: str, steps: int, *, on: bool, every: int) -> Turn:
    """One workload with the signs on or off."""
    training: Training = WORKLOADS[name].make(0)
    for _ in range(2):
        training.step()
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder, meter.around(OURS):
        path = Path(folder) / "run"
        monitor = torchvitals.watch(
            training.model, training.optimizer, run=path, every=every, clocks=on, machine=on,
            **SILENT,
        )  # fmt: skip
        batches = iter(monitor.data(range(10**9)) if on else range(10**9))
        for _ in range(WARM_UP):
            next(batches)
            training.step()
        cpu = own_threads()
        meter.spent, meter.calls, before = 0.0, 0, cpu()
        begun = time.perf_counter()
        for _ in range(steps):
            next(batches)
            training.step()
        wall = time.perf_counter() - begun
        beside = cpu() - before
        monitor.close()
        total = phases_after(path, WARM_UP) if on and every == 1 else float("nan")
    inside = (meter.spent - meter.calls * empty_call_s()) / steps
    return Turn(wall / steps, inside, beside / steps, total / wall)


def phases_after(path: Path, step: int) -> float:
    """Seconds of all phases of the steps after that one."""
    total = 0.0
    with torchvitals.open_run(path) as history:
        for phase in PHASES:
            at, values = history.series(f"clock/{phase}/wall_s")
            total += float(np.sum(values[at > step]))
    return total


def own_threads() -> Callable[[], float]:
    """CPU of the recorder and the machine's sampler so far."""
    ids = [t.native_id for t in threading.enumerate() if t.name.startswith("torchvitals")]

    def read() -> float:
        total = 0.0
        for number in ids:
            try:
                fields = Path(f"/proc/self/task/{number}/schedstat").read_text().split()
            except OSError:
                continue
            total += int(fields[0]) / 1e9
        return total

    return read


def sample_s() -> float:
    """Processor time of one look at the machine."""
    with tempfile.TemporaryDirectory() as folder:
        sampler = MachineSampler(folder=Path(folder))
        sampler.sample()
        return median_cpu_s(sampler.sample, 50)


def forecast_s() -> float:
    """Processor time of a forecast from a long noisy curve."""
    steps = np.arange(100_000)
    noise = 0.05 * np.random.default_rng(0).standard_normal(len(steps))
    values = 2.0 + 3.0 * (steps + 1) ** -0.3 + noise
    return median_cpu_s(lambda: forecast(steps, values, 400_000), 5)


def median_cpu_s(act: Callable[[], object], times: int) -> float:
    """Of this thread."""
    costs = []
    for _ in range(times):
        begun = time.thread_time()
        act()
        costs.append(time.thread_time() - begun)
    return statistics.median(costs)


def main() -> int:
    """Run; the exit code says whether every limit held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="W1,W2,W3,W4")
    parser.add_argument("--seconds", type=float, default=10.0, help="about, a turn")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(
        f"torch {torch.__version__}, 2 threads, {os.cpu_count()} cores, load {os.getloadavg()[0]}"
    )
    failed = 0
    for name in options.workloads.split(","):
        steps = max(10, int(options.seconds / TYPICAL[name]))
        pairs = [
            (measure(name, steps, on=True, every=10), measure(name, steps, on=False, every=10))
            for _ in range(options.rounds)
        ]
        inside = statistics.median(on.inside_s - off.inside_s for on, off in pairs)
        beside = statistics.median(on.beside_s - off.beside_s for on, off in pairs)
        step = statistics.median(off.step_s for _, off in pairs)
        adds_up = measure(name, steps, on=True, every=1).sum_over_wall
        share, seconds = LIMITS.get(name, (None, None))
        good = (
            (share is None or inside <= share * step)
            and (seconds is None or inside <= seconds)
            and abs(adds_up - 1) <= 0.02
        )
        failed += not good
        limit = (
            f" <= {100 * share:g} %" if share else f" <= {1e6 * seconds:g} µs" if seconds else ""
        )
        print(
            f"{name}: step {1e3 * step:.1f} ms; inside {1e6 * inside:.0f} µs "
            f"({100 * inside / step:.3f} %){limit}; threads beside {1e6 * beside:.0f} µs; "
            f"sum / wall {adds_up:.4f}; {'pass' if good else 'FAIL'}",
            flush=True,
        )
    sample, ahead = sample_s(), forecast_s()
    good = sample <= SAMPLE_LIMIT_S
    failed += not good
    print(
        f"a sample of the machine {1e6 * sample:.0f} µs <= {1e6 * SAMPLE_LIMIT_S:g} µs; "
        f"a forecast from 100,000 points {1e3 * ahead:.0f} ms; {'pass' if good else 'FAIL'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
