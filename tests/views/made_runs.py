"""Runs made with the store alone: fast, no torch, every fault where the test wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from torchvitals.record import (
    MISSING,
    GroupInfo,
    Key,
    ModelInfo,
    ModuleInfo,
    ParameterInfo,
    Row,
    RunInfo,
)
from torchvitals.store import RunWriter

LAYERS = [f"blocks.{i}.fc" for i in range(6)]
WEIGHTS = [f"{layer}.weight" for layer in LAYERS]
TENSOR_STATS = ("norm", "rms", "mean", "min", "max", "zero_frac", "num_nan", "num_posinf")
START = 1.7e9

INFO = RunInfo(
    name="made",
    command=("/usr/bin/python3", "train.py", "--name", "a b"),
    git={"commit": "0123456789abcdef", "branch": "main", "dirty": True},
    device={"host": "lab", "threads": 4},
    watch={"every": 1},
    models=(
        ModelInfo(
            name="Net",
            modules=(
                ModuleInfo(name="[root module]", type="Net", depth=0),
                *(ModuleInfo(name=name, type="Linear", depth=2) for name in LAYERS),
            ),
            parameters=tuple(
                ParameterInfo(name=name, shape=(10, 10), dtype="float32") for name in WEIGHTS
            ),
        ),
    ),
    groups=(GroupInfo(optimizer="AdamW", index=0, parameters=tuple(WEIGHTS)),),
)

Change = Callable[[int, dict[Key, float]], None]


def healthy(step: int) -> dict[Key, float]:
    """One step of an ordinary run."""
    values = {Key.scalar("loss"): 4.0 / (1 + 0.1 * step)}
    for kind in ("gradient", "parameter"):
        for at, name in enumerate(WEIGHTS):
            numbers = (1.0 + 0.1 * at, 0.1 + 0.01 * at, 0.0, -0.3, 0.3, 0.0, 0.0, 0.0)
            for stat, number in zip(TENSOR_STATS, numbers, strict=True):
                values[Key(kind, name, stat)] = number
        values[Key(kind, "[root module]", "norm")] = 3.0
    for at, name in enumerate(WEIGHTS):
        values[Key("update", name, "ratio")] = 1e-3 + 1e-4 * at
        values[Key("update", name, "norm")] = 1e-3
        values[Key("update", name, "cosine")] = 0.5
        values[Key("update", name, "frozen")] = 0.0
        values[Key("optimizer", name, "g2_over_v_rms")] = 1.0
        values[Key("optimizer", name, "sqrt_v_over_eps")] = 1e5
    for at, name in enumerate(LAYERS):
        values[Key("activation", name, "std")] = 1.0 + 0.1 * at
        values[Key("activation", name, "mean")] = 0.0
        values[Key("activation", name, "dead_frac")] = 0.0
        values[Key("activation", name, "num_nan")] = 0.0
    values[Key("optimizer", "group0", "lr")] = 1e-3
    values[Key("gradient", "[root module]", "clip_ratio")] = 3.0
    values[Key("summary", "update_ratio", "median")] = 1e-3
    values[Key("summary", "update_ratio", "num_frozen")] = 0.0
    values[Key("summary", "gradient_norm", "num_vanishing")] = 0.0
    values[Key("summary", "gradient_norm", "num_exploding")] = 0.0
    values[Key("summary", "monitor", "overhead_s")] = 0.01
    return values


def make_run(
    path: Path,
    *,
    steps: Iterable[int] = range(1, 41),
    change: Change | None = None,
    info: RunInfo = INFO,
    status: str = "finished",
) -> Path:
    """An ordinary run, with what `change` does to a step's values."""
    with RunWriter.create(path, info) as writer:
        header: tuple[Key, ...] = ()
        for step in steps:
            values = healthy(step)
            if change is not None:
                change(step, values)
            header = header if header == tuple(values) else tuple(values)
            numbers = np.array(list(values.values()), dtype=np.float32)
            writer.append(Row(step, START + 0.5 * step, header, numbers))
        writer.close(status)
    return path


def write_columns(path: Path, columns: Mapping[Key, Sequence[float | None]]) -> Path:
    """A run of just these columns, None where nothing was measured."""
    header = tuple(columns)
    with RunWriter.create(path, RunInfo(name=path.name)) as writer:
        for step in range(max(map(len, columns.values()))):
            numbers = [column[step] for column in columns.values()]
            values = np.array([0.0 if n is None else n for n in numbers], dtype=np.float32)
            values[[n is None for n in numbers]] = MISSING
            writer.append(Row(step, START + step, header, values))
    return path
