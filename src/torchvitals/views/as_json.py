"""Plain data as strict JSON. NaN and ±Inf become the texts "NaN", "Infinity", "-Infinity"."""

from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from torchvitals.record import Key


def plain(value: Any) -> Any:
    """Dicts, lists, texts and finite numbers only: any JSON reader takes it, nothing is lost."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else spelled(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Key):
        return str(value)
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def spelled(value: float) -> str:
    """A value that is not finite as JavaScript, and Python's float(), spell it."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def dumps(value: Any) -> str:
    """One JSON document, indented."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def line(value: Any) -> str:
    """The same in one line, for streams of documents."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)
