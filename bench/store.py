"""What storing costs: time to write, size on disk, time to read. Prints a table, pass or fail.

    .venv/bin/python bench/store.py [--steps 100000] [--columns 2500]

The numbers are made to look like a real run's statistics: each column is a random walk of its
logarithm, x[t] = exp(scale + sum of noise), scale ~ N(-4, 2), and the size of its noise is drawn
log-uniformly between 1e-4 (norms of parameters, which creep) and 0.3 (gradients, which jump).
Every tenth column is a count that hardly ever changes, half of the rest is negated. Generating is
not timed. Writing is judged by its CPU time, reading by wall time, as a user waits; the last column
of a read is its CPU time. Medians of 9 rounds; one commit in 50 rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from torchvitals.record import Key, Row, RunInfo
from torchvitals.store import RunWriter, open_run

STATS = ("count", "mean", "rms", "min", "max", "std", "zero_frac", "kurtosis", "absmean", "l1")
ROUNDS = 9


def rows(steps: int, columns: int, chunk: int = 500) -> Iterator[NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    level = start = rng.normal(-4, 2, columns)
    noise = np.exp(rng.uniform(np.log(1e-4), np.log(0.3), columns)).astype(np.float32)
    sign = np.where(rng.random(columns) < 0.5, -1, 1).astype(np.float32)
    counts = np.arange(columns) % 10 == 0
    for first in range(0, steps, chunk):
        some = min(chunk, steps - first)
        walk = rng.standard_normal((some, columns), dtype=np.float32) * noise
        # Drawn back to where it began, or 100,000 steps would leave float32's range.
        level = start + 0.5 * (level - start)
        path = level + np.cumsum(walk, axis=0)
        level = path[-1].astype(np.float64)
        values = np.exp(path).astype(np.float32) * sign
        values[:, counts] = 589_824
        yield from values


def write(path: Path, steps: int, columns: int) -> tuple[float, float, float]:
    header = tuple(
        Key("gradient", f"blocks.{i // 10}.weight", STATS[i % 10]) for i in range(columns)
    )
    cpu = worst = 0.0
    writer = RunWriter.create(path, RunInfo(name="bench"))
    for step, values in enumerate(rows(steps, columns)):
        row = Row(step, 1.7e9 + step * 0.1, header, values)
        begin, wall = time.process_time(), time.perf_counter()
        writer.append(row)
        if step % 50 == 49:
            writer.commit()
        cpu += time.process_time() - begin
        worst = max(worst, time.perf_counter() - wall)
    begin = time.process_time()
    writer.close()
    closing = time.process_time() - begin
    return cpu / steps * 1e3, closing * 1e3, worst * 1e3


def median_ms(work: Callable[[int], object], rounds: int = ROUNDS) -> tuple[float, float]:
    """CPU and wall time."""
    times = []
    for i in range(rounds):
        begin, wall = time.process_time(), time.perf_counter()
        work(i)
        times.append((time.process_time() - begin, time.perf_counter() - wall))
    cpu, wall = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    return cpu, wall


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=2_500)
    options = parser.parse_args()
    steps, columns = options.steps, options.columns
    failed = 0

    def report(
        what: str, value: float, unit: str, limit: float | None = None, cpu: float | None = None
    ) -> None:
        nonlocal failed
        verdict = "" if limit is None else "pass" if value <= limit else "FAIL"
        failed += verdict == "FAIL"
        bound = "" if limit is None else f"<= {limit:g}"
        beside = "" if cpu is None else f"{cpu:.1f} ms"
        print(f"{what:<45} {value:>9.3f} {unit:<8} {bound:<8} {verdict:<5} {beside}", flush=True)

    def report_read(what: str, work: Callable[[int], object], limit: float | None = None) -> None:
        cpu, wall = median_ms(work)
        report(what, wall, "ms", limit, cpu)

    print(f"{steps:,} steps x {columns:,} columns, 1 process, numpy {np.__version__}")
    with tempfile.TemporaryDirectory(prefix="vitals-bench-") as folder:
        path = Path(folder) / "run"
        cpu, closing, worst = write(path, steps, columns)
        report("write one row, sealing included (CPU)", cpu, "ms", 0.2)
        report("longest single append or commit (wall)", worst, "ms")
        report("close (CPU)", closing, "ms")
        size = sum(file.stat().st_size for file in path.iterdir())
        report("size on disk", size / (steps * columns), "B/value", 3.5)
        rng = np.random.default_rng(1)
        site = [f"gradient/blocks.{i}.weight/rms" for i in rng.integers(0, columns // 10, 64)]

        def fresh(work: Callable[..., object]) -> Callable[[int], object]:
            def run(i: int) -> object:
                with open_run(path) as history:
                    return work(history, i)

            return run

        with open_run(path) as history:
            history.series(site[-1])
            history.row(0)
            picks = rng.integers(0, steps, 64).tolist()
            report_read("open, one series, close", fresh(lambda h, i: h.series(site[i])))
            report_read("one series over all steps", lambda i: history.series(site[i]), 50)
            report_read("one row", lambda i: history.row(picks[i]), 10)
            report_read("envelope of one series, 1000 points", lambda i: history.envelope(site[i]))
            report_read(
                f"matrix of {columns // 10} sites, 1000 points",
                lambda i: history.matrix("gradient", STATS[i], points=1000),
            )
            begin = time.perf_counter()
            for stat in STATS:
                history.matrix("gradient", stat, points=1000)
            report(
                f"matrices of all {columns} columns (wall)",
                (time.perf_counter() - begin) * 1e3,
                "ms",
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
