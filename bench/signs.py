"""What the signs beyond tensors cost (clocks, throughput, machine), and whether the clocks add up.

    python bench/signs.py [--workloads W1,W3] [--seconds 20]

Only clocks and machine are on, every step is monitored: the dearest setting there is.
- "inside": time in our own callbacks, from the loader, the model's call, backward and the
  optimizer's hooks, read by a clock around each of them in the real training. The clock's own cost
  is measured and taken off. The machine's and recorder's threads are in "CPU beside".
- "bare loop": the same callbacks around a training that does nothing, the difference of two loops.
- "sum / wall": the phases of all timed steps together, against one clock around the loop.
Limits: W1 0.3 % of the step, W3 60 µs a step; sum / wall within 2 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchvitals
from torchvitals.monitor.loader import WatchedLoader
from torchvitals.monitor.monitor import Monitor
from torchvitals.monitor.pace import Pace
from torchvitals.probes.clocks import PHASES, Clocks
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
    (Pace, "optimizer_begins"),
    (Pace, "optimizer_ends"),
)
"""Callbacks that run on the training thread; those inside another are not counted twice."""

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


def measure(name: str, steps: int) -> dict[str, float]:
    """One workload."""
    training: Training = WORKLOADS[name].make(0)
    for _ in range(2):
        training.step()
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder, meter.around(OURS):
        monitor = torchvitals.watch(
            training.model, training.optimizer, run=Path(folder) / "run", every=1, **SILENT
        )
        data = monitor.data(range(10**9))
        assert isinstance(data, WatchedLoader)
        batches = iter(data)
        for _ in range(4):
            next(batches)
            training.step()
        cpu = own_threads()
        meter.spent, meter.calls, before = 0.0, 0, cpu()
        first = monitor.step_number
        begun = time.perf_counter()
        for _ in range(steps):
            next(batches)
            training.step()
        wall = time.perf_counter() - begun
        beside = cpu() - before
        monitor.close()
        with torchvitals.open_run(Path(folder) / "run") as history:
            total = 0.0
            for phase in PHASES:
                at, values = history.series(f"clock/{phase}/wall_s")
                total += float(np.sum(values[at > first]))
    inside = (meter.spent - meter.calls * empty_call_s()) / steps
    return {
        "step_s": wall / steps,
        "inside_s": inside,
        "beside_s": beside / steps,
        "sum_over_wall": total / wall,
    }


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


def bare_loop(steps: int = 2000, rounds: int = 9) -> float:
    """Seconds a step that watching adds to a training of one parameter; median of pairs."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.ones(1, 1)

    def loop(batches: Any) -> float:
        begun = time.perf_counter()
        for _ in batches:
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - begun) / steps

    found = []
    loop(range(steps))
    for _ in range(rounds):
        plain = loop(range(steps))
        with (
            tempfile.TemporaryDirectory() as folder,
            torchvitals.watch(
                model, optimizer, run=Path(folder) / "run", every=10, **SILENT
            ) as monitor,
        ):
            for _ in range(3):
                loop(range(1))
            found.append(loop(monitor.data(range(steps))) - plain)
    return statistics.median(found)


def main() -> int:
    """Run; the exit code says whether every limit held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="W1,W2,W3,W4")
    parser.add_argument("--seconds", type=float, default=20.0, help="about, a workload")
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(f"torch {torch.__version__}, 2 threads, every step monitored")
    print(f"bare loop, one parameter, every 10th step: {1e6 * bare_loop():.0f} µs a step")
    typical = {"W1": 0.5, "W2": 1.0, "W3": 0.025, "W4": 1.1}
    failed = 0
    for name in options.workloads.split(","):
        found = measure(name, max(8, int(options.seconds / typical[name])))
        share, seconds = LIMITS.get(name, (None, None))
        inside, step = found["inside_s"], found["step_s"]
        good = (
            (share is None or inside <= share * step)
            and (seconds is None or inside <= seconds)
            and abs(found["sum_over_wall"] - 1) <= 0.02
        )
        failed += not good
        limit = f"<= {100 * share:g} %" if share else f"<= {1e6 * seconds:g} µs" if seconds else ""
        print(
            f"{name}: step {1e3 * step:.1f} ms, inside {1e6 * inside:.0f} µs "
            f"({100 * inside / step:.3f} %) {limit}, CPU beside {1e6 * found['beside_s']:.0f} µs, "
            f"sum / wall {found['sum_over_wall']:.4f}  {'pass' if good else 'FAIL'}",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
