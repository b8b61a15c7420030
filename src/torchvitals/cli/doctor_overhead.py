"""What watching costs here: a tiny training with and without the monitor, in turns.

On one thread: two threads that wait for each other on a busy machine measure the machine. The
diagnosis runs as it does for everybody, but what it finds in this training is nobody's business.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STEPS, SETTLE = 10, 4
"""Steps of a turn, and how many of them are not counted."""


def measure_overhead(seconds: float) -> dict[str, Any]:
    """Medians of all counted steps, in microseconds."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with without_findings():
            return _measure(seconds)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def without_findings() -> Iterator[None]:
    """Findings are not printed; other warnings are."""
    log = logging.getLogger("torchvitals")

    def is_other(record: logging.LogRecord) -> bool:
        return record.module != "telling"  # diagnosis/telling.py

    log.addFilter(is_other)
    try:
        yield
    finally:
        log.removeFilter(is_other)


def _measure(seconds: float) -> dict[str, Any]:
    import torch
    from torch import nn

    import torchvitals

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )
        # A batch of its own for each step: the same one again is a fault that would be found.
        batches = [(torch.randn(128, 64), torch.randint(10, (128,))) for _ in range(STEPS)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def turn() -> list[float]:
        spent = []
        for inputs, targets in batches:
            begun = time.perf_counter()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            spent.append(time.perf_counter() - begun)
        return spent[SETTLE:]

    plain: list[float] = []
    watched: list[float] = []
    with tempfile.TemporaryDirectory(prefix="vitals-doctor-") as folder:
        end = time.monotonic() + seconds
        number = 0
        while number < 2 or time.monotonic() < end:
            number += 1
            plain += turn()
            with torchvitals.watch(model, optimizer, run=Path(folder) / str(number), every=1):
                watched += turn()
    without, with_ = statistics.median(plain), statistics.median(watched)
    return {
        "plain_us": 1e6 * without,
        "watched_us": 1e6 * with_,
        "added_us": 1e6 * (with_ - without),
        "added_frac": with_ / without - 1,
        "num_parameters": sum(p.numel() for p in model.parameters()),
        "num_steps": len(watched),
    }
