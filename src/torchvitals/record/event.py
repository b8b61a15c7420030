"""`Event`: something that happened at a step: a resume, a probe switched off, a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """What happened, when, in words; `data` holds the details as JSON values."""

    step: int
    time: float
    kind: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)
