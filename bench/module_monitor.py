"""ModuleMonitor beside the package whose interface it shares, torch-module-monitor.

    python bench/module_monitor.py [--workloads W1,W3] [--rounds 8] [--every 10,1]

- Cost: the example of that package's README (mean of every module's output, norms of parameters and
  gradients), letter for letter: every 10th step; and the same every step. Bare, theirs and ours
  take turns in random order in one process; figures are medians of what a step takes beyond the
  bare one's of the same round. Ours writes its run file, theirs keeps its values in memory.
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
import time
import warnings
from collections.abc import Callable
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
SEGMENT = {"W1": 2, "W2": 1, "W3": 20, "W4": 1}


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


def cost(name: str, every: int, rounds: int) -> tuple[float, float, float]:
    """Seconds: the bare step, and what theirs and ours add to it."""
    training = WORKLOADS[name].make(0)
    for _ in range(3):
        training.step()
    added: dict[str, list[float]] = {"theirs": [], "ours": []}
    bare = []
    for _ in range(rounds):
        took = {}
        for who in random.sample(["bare", "theirs", "ours"], 3):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                # Whole multiples of `every`: each segment has its share of monitored steps.
                steps = every * -(-SEGMENT[name] // every)
                took[who] = segment(training, who, every, Path(folder), steps)
        bare.append(took["bare"])
        for who, found in added.items():
            found.append(took[who] - took["bare"])
    return statistics.median(bare), *(statistics.median(found) for found in added.values())


def segment(training: Training, who: str, every: int, folder: Path, steps: int) -> float:
    """Seconds a step."""
    if who == "theirs":
        training.observe(ReadmeExample("torch_module_monitor", every))
    elif who == "ours":
        training.observe(ReadmeExample("torchvitals", every, run=folder / "run"))
    training.step()
    begun = time.perf_counter()
    for _ in range(steps):
        training.step()
    took = (time.perf_counter() - begun) / steps
    if who != "bare":
        training.release()
    return took


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
        bare, theirs, ours = cost(name, every, options.rounds)
        failed += not ours <= COST * theirs
        print(
            f"{name} every {every}: step {1e3 * bare:.1f} ms, theirs {1e3 * theirs:.1f} ms, ours "
            f"{1e3 * ours:.2f} ms, ratio {ours / theirs:.3f} (<= {COST:.2f}) "
            f"{'pass' if ours <= COST * theirs else 'FAIL'}",
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
