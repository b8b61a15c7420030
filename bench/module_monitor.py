"""ModuleMonitor beside the package whose interface it shares, torch-module-monitor.

    python bench/module_monitor.py [--workloads W1,W3] [--rounds 8] [--every 10,1]

- Cost: the example of that package's README (mean of every module's output, norms of parameters and
  gradients), letter for letter: every 10th step; and the same every step. Bare, theirs and ours
  take turns in random order in one process. A turn begins with untimed steps: opening a run
  happens once, and is told apart. Monitored steps and the others are compared with the bare ones of
  the same round by their medians: single steps of this machine take half as long again for reasons
  of their own. That leaves out the steps in which our writer's thread is busy; so its whole CPU
  time counts as ours, as if it never ran beside the training. Theirs keeps its values in memory.
- Memory: entropy of causal attention, 12 heads, sequence 1024, batch 2: the most bytes alive at a
  time beyond the inputs.
Limits: a fifth of the cost, a quarter of the memory.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workloads import WORKLOADS, Observer, Training

COST, MEMORY = 1 / 5, 1 / 4
SEGMENT = {"W1": 4, "W2": 2, "W3": 40, "W4": 2}
"""Timed steps of a turn."""
SETTLE = {"W1": 2, "W2": 1, "W3": 20, "W4": 1}
"""Untimed ones before."""


class ReadmeExample(Observer):
    """The README's loop around a training."""

    def __init__(self, package: str, every: int = 1, **options: Any) -> None:
        self._package = package
        self._every = every
        self._options = options
        self._step = 0

    def attach(self, training: Training) -> None:
        """Hooks and metrics."""
        monitor = import_module(self._package).ModuleMonitor(
            monitor_step_fn=lambda step: step % self._every == 0, **self._options
        )
        monitor.set_module(training.model)
        monitor.add_activation_metric("mean", lambda x: x.mean(dim=-1))
        monitor.add_parameter_metric("norm", lambda x: x.norm())
        monitor.add_gradient_metric("norm", lambda x: x.norm())
        self._monitor = monitor

    def before_forward(self) -> None:
        """Begin."""
        self._monitor.begin_step(self._step)
        self._step += 1

    def after_backward(self) -> None:
        """Look."""
        self._monitor.monitor_parameters()
        self._monitor.monitor_gradients()

    def after_step(self, _loss: Tensor) -> None:
        """End."""
        self._monitor.end_step()
        if self._monitor.is_step_monitored(self._step - 1):
            self._monitor.get_step_metrics()

    def close(self) -> None:
        """Leave nothing."""
        if hasattr(self._monitor, "close"):
            self._monitor.close()
        else:
            self._monitor.activation_hooks.remove_all_hooks()


@dataclass
class Turn:
    """What one turn took, in seconds."""

    opening: float
    """Attaching and the untimed steps."""
    steps: list[float]
    writer: float
    """CPU of the writer's thread, a step."""

    def median(self, every: int, *, monitored: bool) -> float:
        """Of the monitored steps, or of the others."""
        return statistics.median(
            took for n, took in enumerate(self.steps) if (n % every == 0) == monitored
        )


@dataclass
class Cost:
    """Medians over all rounds, in seconds a step."""

    bare: float
    theirs: float
    ours: float
    opening: float
    """What opening our run and its first steps take beyond the bare ones, in all."""

    @property
    def ratio(self) -> float:
        """Ours for one of theirs."""
        return self.ours / self.theirs


def cost(name: str, every: int, rounds: int) -> Cost:
    """What theirs and ours add to a step."""
    training = WORKLOADS[name].make(0)
    for _ in range(3):
        training.step()
    found: dict[str, list[float]] = {"bare": [], "theirs": [], "ours": [], "opening": []}
    for _ in range(rounds):
        turns = {}
        for who in random.sample(["bare", "theirs", "ours"], 3):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                # Whole multiples of `every`: the first step of each is a monitored one.
                settle, steps = (every * -(-n // every) for n in (SETTLE[name], SEGMENT[name]))
                turns[who] = turn(training, who, every, Path(folder), settle, steps)
        bare = statistics.median(turns["bare"].steps)
        found["bare"].append(bare)
        for who in ("theirs", "ours"):
            one = turns[who]
            added = one.median(every, monitored=True) - bare
            if every > 1:
                added += (every - 1) * (one.median(every, monitored=False) - bare)
            found[who].append(added / every + one.writer)
        found["opening"].append(turns["ours"].opening - turns["bare"].opening)
    return Cost(**{key: statistics.median(values) for key, values in found.items()})


def turn(training: Training, who: str, every: int, folder: Path, settle: int, steps: int) -> Turn:
    """Train for a while with one of them, or with none."""
    begun = time.perf_counter()
    if who == "theirs":
        training.observe(ReadmeExample("torch_module_monitor", every))
    elif who == "ours":
        training.observe(ReadmeExample("torchvitals", every, run=folder / "run"))
    for _ in range(settle):
        training.step()
    opening, writer, took = time.perf_counter() - begun, writer_cpu(), []
    for _ in range(steps):
        before = time.perf_counter()
        training.step()
        took.append(time.perf_counter() - before)
    wrote = (writer_cpu() - writer) / steps
    if who != "bare":
        training.release()
    return Turn(opening, took, wrote)


def writer_cpu() -> float:
    """CPU seconds of our writer's thread so far."""
    for thread in threading.enumerate():
        if thread.name == "torchvitals" and thread.ident is not None:
            return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return 0.0


class Alive(TorchDispatchMode):
    """Counts the bytes of the tensors made inside that are alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                place = storage._cdata
                if place not in self._known:
                    self._known.add(place)
                    self.now += storage.nbytes()
                    self.most = max(self.most, self.now)
                    finalize(storage, self._gone, place, storage.nbytes())
        return out

    def _gone(self, place: int, size: int) -> None:
        self._known.discard(place)
        self.now -= size


def peak(package: str) -> int:
    """The most bytes alive while the entropy of one attention is computed."""
    module = torch.nn.Linear(1, 1)
    options = {} if package == "torch_module_monitor" else {"run": False}
    library = import_module(package)
    monitor = library.ModuleMonitor(monitor_step_fn=lambda step: True, **options)
    monitor.set_module(module)
    query, key, value = torch.randn(3, 2, 12, 1024, 64)
    monitor.begin_step(0)
    with Alive() as alive:
        library.monitor_scaled_dot_product_attention(
            monitor, module=module, query=query, key=key, value=value, is_causal=True
        )
    monitor.end_step()
    assert monitor.get_step_metrics()["attention_entropy/[root module].head_0"] > 0
    return alive.most


def main() -> int:
    """Run; the exit code says whether both limits held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="W1,W3")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--every", default="10,1")
    options = parser.parse_args()
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    failed = 0
    for name, every in product(options.workloads.split(","), map(int, options.every.split(","))):
        found = cost(name, every, options.rounds)
        failed += not found.ratio <= COST
        print(
            f"{name} every {every}: step {1e3 * found.bare:.1f} ms, theirs "
            f"{1e3 * found.theirs:.2f} ms, ours {1e3 * found.ours:.2f} ms, ratio "
            f"{found.ratio:.3f} (<= {COST:.2f}) {'pass' if found.ratio <= COST else 'FAIL'}; "
            f"opening a run and its first steps {1e3 * found.opening:.0f} ms",
            flush=True,
        )
    sizes: dict[str, int] = {}
    measure: Callable[[str], int] = peak
    for package in ("torch_module_monitor", "torchvitals"):
        sizes[package] = measure(package)
    theirs, ours = sizes.values()
    failed += not ours <= MEMORY * theirs
    print(
        f"entropy at sequence 1024: theirs {theirs / 1e6:.0f} MB, ours {ours / 1e6:.0f} MB, ratio "
        f"{ours / theirs:.3f} (<= {MEMORY}) {'pass' if ours <= MEMORY * theirs else 'FAIL'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
