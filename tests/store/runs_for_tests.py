"""Small runs, and the child processes that the tests start and kill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from torchvitals.record import Key, Row, RunInfo
from torchvitals.store import RunWriter

SRC = Path(__file__).parents[2] / "src"
INFO = RunInfo(name="test", config={"lr": 1e-3}, command=("python", "train.py"))


def header(columns: int, kind: str = "gradient", first: int = 0) -> tuple[Key, ...]:
    return tuple(Key(kind, f"layers.{i}", "rms") for i in range(first, first + columns))


def row(step: int, keys: Sequence[Key], values: object) -> Row:
    numbers = np.broadcast_to(np.asarray(values, dtype=np.float32), (len(keys),))
    return Row(step, 1e9 + step, tuple(keys), numbers)


def scalars(step: int, **values: float) -> Row:
    return row(step, tuple(Key.scalar(name) for name in values), list(values.values()))


def writer(path: Path, **options: object) -> RunWriter:
    return RunWriter.create(path, INFO, **options)  # type: ignore[arg-type]


def start_child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Run code in a fresh Python that has torchvitals (and no torch) on its path."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )


def end_child(child: subprocess.Popen[str]) -> str:
    out, _ = child.communicate(timeout=30)
    return out
