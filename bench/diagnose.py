"""What a diagnosis costs: a long run's file, all rules. Prints a table, pass or fail.

    .venv/bin/python bench/diagnose.py [--steps 100000] [--columns 2500] [--keep DIR]

The file has the columns that watch() stores (gradients, parameters, updates, activations,
optimizer, clocks, a loss), filled with random walks like those of bench/store.py. Medians of 3
rounds, each with the file opened afresh; CPU time stands beside the wall time.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from torchvitals.diagnosis import diagnose
from torchvitals.record import (
    ROOT,
    GroupInfo,
    Key,
    ModelInfo,
    ModuleInfo,
    ParameterInfo,
    Row,
    RunInfo,
)
from torchvitals.store import RunWriter, open_run

STATS = (
    *("norm", "rms", "mean", "std", "min", "max", "zero_frac"),
    *("num_nan", "num_posinf", "num_neginf"),
)
UPDATE = (*STATS, "ratio", "cosine", "lr_ratio", "frozen")
LIMIT_S = 5.0


def header(columns: int) -> tuple[tuple[Key, ...], RunInfo]:
    """About `columns` keys of a plain stack of layers, and the run's description."""
    per_layer = 10 + 10 + 14 + 2 + 11
    layers = max(4, (columns - 40) // per_layer)
    names = [f"layers.{i}" for i in range(layers)]
    weights = [f"{name}.weight" for name in names]
    keys = [Key("gradient", w, s) for w in weights for s in STATS]
    keys += [Key("gradient", ROOT, s) for s in ("norm", "clip_ratio", "clipped_norm", "stale")]
    keys += [Key("parameter", w, s) for w in weights for s in STATS]
    keys += [Key("update", w, s) for w in weights for s in UPDATE]
    keys += [Key("update", ROOT, s) for s in ("norm", "ratio", "lr_ratio")]
    moments = ("g2_over_v_rms", "sqrt_v_over_eps")
    keys += [Key("optimizer", w, s) for w in weights for s in moments]
    keys += [Key("optimizer", "group0", "lr"), Key("optimizer", "group0", "weight_decay")]
    keys += [Key("activation", n, s) for n in names for s in (*STATS[1:], "dead_frac", "min")]
    keys += [Key("clock", s, "wall_s") for s in ("step", "data")]
    keys += [Key("speed", "run", "steps_per_s"), Key("summary", "update_ratio", "median")]
    keys += [Key.scalar("loss")]
    modules = (
        ModuleInfo(name=ROOT, type="Sequential", depth=0),
        *(
            ModuleInfo(name=n, type="Linear", depth=1, parameters=(w,))
            for n, w in zip(names, weights, strict=True)
        ),
    )
    parameters = tuple(ParameterInfo(name=w, shape=(256, 256), dtype="float32") for w in weights)
    info = RunInfo(
        name="bench",
        watch={"every": 1},
        models=(ModelInfo(name="", modules=modules, parameters=parameters),),
        groups=(
            GroupInfo(
                optimizer="AdamW",
                index=0,
                parameters=tuple(weights),
                options={"lr": 1e-3, "eps": 1e-8, "betas": [0.9, 0.999]},
            ),
        ),
    )
    return tuple(dict.fromkeys(keys)), info


def write(path: Path, steps: int, columns: int) -> int:
    keys, info = header(columns)
    rng = np.random.default_rng(0)
    start = np.array([0.0 if k.stat.startswith("num_") else -3.0 for k in keys])
    noise = np.exp(rng.uniform(np.log(1e-4), np.log(0.2), len(keys)))
    zero = np.array([k.stat.startswith("num_") or k.stat in {"frozen", "stale"} for k in keys])
    level = start.copy()
    writer = RunWriter.create(path, info)
    for first in range(0, steps, 500):
        some = min(500, steps - first)
        level = start + 0.9 * (level - start)
        walk = level + np.cumsum(rng.standard_normal((some, len(keys))) * noise, axis=0)
        level = walk[-1]
        values = np.exp(np.clip(walk, -20, 5)).astype(np.float32)
        values[:, zero] = 0
        for at, line in enumerate(values):
            writer.append(Row(first + at + 1, 1.7e9 + (first + at) * 0.1, keys, line))
            if at % 50 == 49:
                writer.commit()
    writer.close()
    return len(keys)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=2_500)
    parser.add_argument("--keep", type=Path, help="make the file here, or use the one that is")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitals-bench-") as folder:
        path = options.keep or Path(folder) / "run"
        if not path.exists():
            write(path, options.steps, options.columns)
        times, busy = [], []
        for _ in range(3):
            begin, cpu = time.perf_counter(), time.process_time()
            with open_run(path) as history:
                num = len(history.keys())
                found = diagnose(history)
            times.append(time.perf_counter() - begin)
            busy.append(time.process_time() - cpu)
        if options.profile:
            profile = cProfile.Profile()
            with open_run(path) as history:
                profile.runcall(diagnose, history)
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)
    took = statistics.median(times)
    verdict = "pass" if took <= LIMIT_S else "FAIL"
    print(f"{found.steps:,} steps × {num:,} columns: {len(found.findings)} findings")
    cpu = statistics.median(busy)
    print(f"full diagnosis {took:9.2f} s   <= {LIMIT_S:g} s   {verdict}   CPU {cpu:.2f} s")
    return int(verdict == "FAIL")


if __name__ == "__main__":
    raise SystemExit(main())
