"""The statistics pass alone, against one plain read of the same bytes by the same threads.

    python bench/kernel.py [--shapes W1,W4] [--rounds 31] [--json FILE]

The yardstick is a loop that sums 64-bit words, compiled here and now with the system's compiler,
with chunks of 512 KB over all tensors handed out by the same OpenMP pool the kernel and torch run
on. The ratio to it carries from machine to machine where milliseconds do not.

There are two such reads, and the choice decides verdicts, so both are shown. The *straight* one
walks through a chunk from front to back; the limits were set in its units. The *four-stream* one
walks through the four quarters of a chunk at once, which keeps more cache misses in flight and can
be much faster from main memory: it is nearer to what the machine can do, and a pass that is close
to the straight read is not thereby at the speed of memory.

Tensors are normal × 1e-3 in the shapes of a workload's parameters. In each round all variants run
in random order; a variant's ratio in a round is its median of a few runs over the read's. A run
during which the system took a core away from us (an involuntary context switch) is dropped: two
runs that both waited for other processes have a ratio near 1 whatever they cost. Where fewer than
15 rounds are left the verdict is "too busy".
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchvitals.stats.backend import Bins
from torchvitals.stats.native.backend import NativeBackend
from torchvitals.stats.native.library import pool, simd
from workloads import shapes

SOURCE = r"""
#include <stdint.h>

enum { CHUNK = 512 * 1024 };

typedef struct {
    const char *const *data;
    const int64_t *bytes;
    const int64_t *first; /* first chunk of each tensor; num + 1 entries */
    int64_t num, next;
    int streams;
    uint64_t total;
} job;

static uint64_t four(const uint64_t *x, int64_t n) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    int64_t i = 0, quarter = n / 4;
    const uint64_t *y = x + quarter, *z = y + quarter, *w = z + quarter;
    for (; i < quarter; i++) {
        a += x[i];
        b += y[i];
        c += z[i];
        d += w[i];
    }
    for (i = 4 * quarter; i < n; i++) a += x[i];
    return a + b + c + d;
}

static uint64_t straight(const uint64_t *x, int64_t n) {
    uint64_t a = 0;
    for (int64_t i = 0; i < n; i++) a += x[i];
    return a;
}

static void work(void *argument) {
    job *j = argument;
    int64_t k = 0, chunks = j->first[j->num];
    uint64_t total = 0;
    for (;;) {
        int64_t chunk = __atomic_fetch_add(&j->next, 1, __ATOMIC_RELAXED);
        if (chunk >= chunks) break;
        while (chunk >= j->first[k + 1]) k++;
        int64_t begin = (chunk - j->first[k]) * CHUNK;
        int64_t bytes = j->bytes[k] - begin < CHUNK ? j->bytes[k] - begin : CHUNK;
        const uint64_t *x = (const uint64_t *)(j->data[k] + begin);
        total += j->streams == 4 ? four(x, bytes / 8) : straight(x, bytes / 8);
    }
    __atomic_fetch_add(&j->total, total, __ATOMIC_RELAXED);
}

typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);

uint64_t plain_read(const char *const *data, const int64_t *bytes, const int64_t *first,
                    int64_t num, int streams, parallel_fn parallel, int threads) {
    job j = {data, bytes, first, num, 0, streams, 0};
    if (parallel && threads > 1)
        parallel(work, &j, (unsigned)threads, 0);
    else
        work(&j);
    return j.total;
}
"""
CHUNK = 512 * 1024
REPEATS = 3
ENOUGH = 15
"""Rounds that must be left for a verdict."""

STRAIGHT, FOUR = "plain read, straight", "plain read, four streams"

LIMITS = {"moments": 1.4, "moments + sampled histogram": 1.8, "moments + full histogram": 2.4}
"""Most a pass may cost, in plain reads of the same bytes."""


class PlainRead:
    """The compiled loop over a list of tensors."""

    def __init__(self, folder: Path) -> None:
        source, library = folder / "plain_read.c", folder / "plain_read.so"
        source.write_text(SOURCE)
        flags = ["-mavx2"] if platform.machine() in {"x86_64", "AMD64"} else []
        command = ["cc", "-O3", *flags, "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        self._read = ctypes.CDLL(str(library)).plain_read
        self._read.restype = ctypes.c_uint64
        self._read.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
        ]

    def prepare(self, tensors: Sequence[Tensor], streams: int) -> Callable[[], int]:
        """A call that reads all of `tensors` once and returns the sum of their words."""
        data = np.array([t.data_ptr() for t in tensors], dtype=np.uint64)
        sizes = np.array([t.numel() * t.element_size() for t in tensors], dtype=np.int64)
        chunks = -(-sizes // CHUNK)
        first = np.concatenate([[0], np.cumsum(chunks)]).astype(np.int64)
        threads = torch.get_num_threads()

        def read() -> int:
            return self._read(
                data.ctypes.data,
                sizes.ctypes.data,
                first.ctypes.data,
                len(sizes),
                streams,
                pool(),
                threads,
            )

        return read


def random_like(shape_list: Sequence[torch.Size], seed: int) -> list[Tensor]:
    """Normal × 1e-3 tensors of those shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).mul_(1e-3) for shape in shape_list]


def variants(read: PlainRead, tensors: list[Tensor]) -> dict[str, Callable[[], object]]:
    """Name → a call that makes one pass. The plain reads come first."""
    backend = NativeBackend()
    old = [t + 1e-4 for t in tensors]
    grads = random_like([t.shape for t in tensors], seed=2)
    return {
        STRAIGHT: read.prepare(tensors, streams=1),
        FOUR: read.prepare(tensors, streams=4),
        "moments": lambda: backend.measure(tensors),
        "moments + sampled histogram": lambda: backend.measure(tensors, bins=Bins(7)),
        "moments + full histogram": lambda: backend.measure(tensors, bins=Bins(1)),
        "parameters + updates, sampled": lambda: backend.measure_update(
            tensors, old, grads, bins=Bins(7), delta_bins=Bins(7)
        ),
        "torch._foreach_norm": lambda: torch._foreach_norm(tensors),
    }


def preemptions() -> int:
    """How often a thread of this process was taken off its core."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def measure(
    calls: dict[str, Callable[[], object]], rounds: int, dice: random.Random
) -> dict[str, list[float]]:
    """Seconds of each variant in each round; NaN where every run of it was preempted."""
    for call in calls.values():
        call()
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        order = [name for name in calls for _ in range(REPEATS)]
        dice.shuffle(order)
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for name in order:
            before = preemptions()
            begin = time.perf_counter()
            calls[name]()
            end = time.perf_counter()
            if preemptions() == before:
                taken[name].append(end - begin)
        for name, values in taken.items():
            seconds[name].append(statistics.median(values) if values else math.nan)
    return seconds


def ratio(values: Sequence[float], base: Sequence[float]) -> dict[str, float | int]:
    """Median and quartiles of value / base over the rounds in which both could be measured."""
    ratios = np.array(values) / np.array(base)
    ratios = ratios[np.isfinite(ratios)]
    low, middle, high = np.percentile(ratios, [25, 50, 75]) if ratios.size else [math.nan] * 3
    return {
        "median": float(middle),
        "low": float(low),
        "high": float(high),
        "rounds": int(ratios.size),
    }


def judge(found: dict[str, float | int], limit: float | None) -> str:
    """ "pass", "FAIL", "too busy", or nothing where there is no limit."""
    if limit is None:
        return ""
    if found["rounds"] < ENOUGH:
        return "too busy"
    return "pass" if found["median"] <= limit else "FAIL"


def report(name: str, tensors: list[Tensor], seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Print one workload's table; return it as plain data."""
    size = sum(t.numel() * t.element_size() for t in tensors)
    print(f"\n{name}: {len(tensors)} tensors, {size / 1e6:.0f} MB")
    print(
        f"  {'pass':<31}{'ms':>8}{'GB/s':>7}  {'limit':>5}  "
        f"{'× straight read (IQR)':<31}{'× four-stream read (IQR)':<31}rounds"
    )
    table: dict[str, Any] = {}
    for variant, values in seconds.items():
        clean = [v for v in values if math.isfinite(v)]
        median = statistics.median(clean) if clean else math.nan
        limit = LIMITS.get(variant)
        line: dict[str, Any] = {"ms": 1e3 * median, "limit": limit}
        cells = []
        for key, base in (("straight", STRAIGHT), ("four", FOUR)):
            found = ratio(values, seconds[base])
            line[key] = {**found, "verdict": judge(found, limit)}
            spread = f"({found['low']:.2f}…{found['high']:.2f})"
            cells.append(f"{found['median']:.2f} {spread} {line[key]['verdict']}")
        print(
            f"  {variant:<31}{1e3 * median:>8.2f}{size / median / 1e9:>7.1f}  {limit or '':>5}  "
            f"{cells[0]:<31}{cells[1]:<31}{line['straight']['rounds']}"
        )
        table[variant] = line
    return {"bytes": size, "tensors": len(tensors), "passes": table}


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit code says whether every limit held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="W1,W4", help="workloads whose shapes to take")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, kernel {simd()}, "
        f"{options.rounds} rounds of {REPEATS} runs in random order, medians, "
        "preempted runs dropped"
    )
    if pool() is None:
        print(
            "torch has no OpenMP pool to share here: the kernel and the plain read use one thread"
        )
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        read = PlainRead(Path(folder))
        for name in options.shapes.split(","):
            tensors = random_like(shapes(name), seed=1)
            seconds = measure(variants(read, tensors), options.rounds, random.Random(options.seed))
            results[name] = report(name, tensors, seconds)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    judged = [
        (f"{name} {variant}", line["straight"]["verdict"])
        for name, result in results.items()
        for variant, line in result["passes"].items()
        if line["limit"] is not None
    ]
    failed = [what for what, verdict in judged if verdict == "FAIL"]
    unjudged = [what for what, verdict in judged if verdict == "too busy"]
    print("\nAgainst the straight read, in whose units the limits were set:")
    print("  over the limit: " + (", ".join(failed) or "none"))
    print("  not judged, the machine was too busy: " + (", ".join(unjudged) or "none"))
    return len(failed) + len(unjudged) > 0


if __name__ == "__main__":
    sys.exit(main())
