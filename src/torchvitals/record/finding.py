"""`Finding`: what is wrong with a run, where, since when, by which evidence, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad it is: worth knowing, worth acting on, the run is being wasted."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0, 1, 2: the worse, the larger."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One measured number beside the limit it broke."""

    text: str
    """In words, with the number and the limit: ``update ratio 0.34, healthy is below 0.1``."""
    key: str | None = None
    """The column to look at, as `str(Key)`."""
    step: int | None = None
    value: float | None = None
    threshold: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What may be behind it, and the test that tells it from the other causes."""

    text: str
    test: str
    confidence: float
    """0…1; the causes of a finding stand in falling order of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One ailment of a run. `name` is the id of the rule that found it."""

    name: str
    severity: Severity
    sites: tuple[str, ...]
    """Where, the origin first; ``[root module]`` for the run as a whole."""
    first_step: int
    last_step: int
    evidence: tuple[Evidence, ...]
    explanation: str
    causes: tuple[Cause, ...] = ()
    fix: str = ""
    """The one thing to do first, with numbers: ``lower lr from 0.003 to 0.0003``."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """The numbers of the fix for a machine: ``{"lr": {"from": 0.003, "to": 0.0003}}``."""
    confidence: float = 0.5
    """0…1: how sure the rule is that this is what is wrong."""
    symptoms: tuple[Finding, ...] = ()
    """Findings that this one explains."""
    resolved_step: int | None = None
    """The step at which it was over; None while it is open."""

    @property
    def is_open(self) -> bool:
        """Whether it still goes on."""
        return self.resolved_step is None

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values (numbers may be NaN or infinite)."""
        data = asdict(self)
        data["severity"] = self.severity.value
        data["symptoms"] = [symptom.to_json() for symptom in self.symptoms]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """The inverse of `to_json`; unknown fields of a newer version are dropped."""
        known = {k: v for k, v in data.items() if k in {f.name for f in fields(cls)}}
        known["severity"] = Severity(known["severity"])
        known["sites"] = tuple(known["sites"])
        known["evidence"] = tuple(Evidence(**each) for each in known["evidence"])
        known["causes"] = tuple(Cause(**each) for each in known.get("causes", ()))
        known["symptoms"] = tuple(cls.from_json(each) for each in known.get("symptoms", ()))
        return cls(**known)
