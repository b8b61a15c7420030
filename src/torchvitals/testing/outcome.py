"""`Outcome`: how a training ended, and whether a fault did harm to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is left of a run beside its file. `test_*` is the truth: eval mode, unseen data."""

    case: str
    seed: int
    steps: int
    train_loss: float
    """Mean of the last tenth of the run, as the user logged it."""
    test_loss: float | None = None
    test_accuracy: float | None = None
    reported: Mapping[str, float] = field(default_factory=dict)
    """The last validation numbers the user saw."""
    onset: int | None = None
    """The step at which the fault acts first; None for healthy runs."""
    seconds: float = 0.0
    waiting_frac: float = 0.0
    """Share of the time spent waiting for batches."""
    memory_bytes: int = 0
    """Growth of the process over the run."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    """Settings that a recommended change has set."""

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Outcome:
        """The inverse of `to_json`; unknown fields are dropped."""
        known = {f.name for f in fields(cls)}
        values = {name: value for name, value in stored.items() if name in known}
        values["changed"] = tuple(values.get("changed", ()))
        return cls(**values)


def harm(outcome: Outcome, clean: Outcome, kind: str = "result") -> str | None:
    """What the fault spoilt, in words, or None when the run is as good as the clean one.

    `kind` is what the fault can spoil: "result", also "report" (the numbers the user sees are not
    the truth), "time", "memory".
    """
    if kind == "time":
        # Shares, not seconds: the two runs were not made on an equally busy machine.
        waits = outcome.waiting_frac
        longer = waits - clean.waiting_frac > 0.2
        return f"{waits:.0%} of the time is spent waiting for data" if longer else None
    if kind == "memory":
        grown = (outcome.memory_bytes - clean.memory_bytes) / 1e6
        return f"{grown:.0f} MB more memory" if grown > 50 else None
    if kind == "report":
        gap = _report_gap(outcome) - _report_gap(clean)
        if gap > 0.03:
            return f"the reported accuracy is off by {gap:.2f}"
    return _result_harm(outcome, clean)


def _report_gap(outcome: Outcome) -> float:
    shown = outcome.reported.get("accuracy")
    if shown is None or outcome.test_accuracy is None:
        return 0.0
    return abs(shown - outcome.test_accuracy)


def _result_harm(outcome: Outcome, clean: Outcome) -> str | None:
    loss, best = outcome.test_loss, clean.test_loss
    if loss is not None and not math.isfinite(loss):
        return "the loss is not finite"
    accuracy, reached = outcome.test_accuracy, clean.test_accuracy
    if accuracy is not None and reached is not None and accuracy < 0.97 * reached:
        return f"accuracy {accuracy:.3f} instead of {reached:.3f}"
    if loss is not None and best is not None and loss - best > max(0.05 * best, 0.015):
        return f"loss {loss:.3f} instead of {best:.3f}"
    return None


def as_good(outcome: Outcome, clean: Outcome, margin: float = 0.05) -> bool:
    """Whether a rerun comes within `margin` of the clean run: accuracy, or loss of a text."""
    if outcome.test_accuracy is not None and clean.test_accuracy is not None:
        return outcome.test_accuracy >= (1 - margin) * clean.test_accuracy
    if outcome.test_loss is None or clean.test_loss is None:
        return False
    return outcome.test_loss <= (1 + margin) * clean.test_loss
