"""Reads a ``.wandb`` file: records of W&B's own protocol in LevelDB's log format."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32768
HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Record]:
    """What was written, in order."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, parts = HEADER, b""
    while at < len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        body = data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in {FULL, FIRST}:
            parts = b""
        parts += body
        if kind in {FULL, LAST}:
            yield Record.FromString(parts)


def name_of(item: Any) -> str:
    return item.key or ":".join(item.nested_key)


def history(path: Path) -> list[dict[str, Any]]:
    """The rows that were logged."""
    found = [r.history for r in records(path) if r.WhichOneof("record_type") == "history"]
    return [{name_of(item): json.loads(item.value_json) for item in row.item} for row in found]


def metrics(path: Path) -> dict[str, str]:
    """What was said about metrics: name or glob → its x-axis."""
    found = [r.metric for r in records(path) if r.WhichOneof("record_type") == "metric"]
    return {metric.name or metric.glob_name: metric.step_metric for metric in found}
