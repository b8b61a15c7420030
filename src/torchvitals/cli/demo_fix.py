"""What the diagnosis recommends, as far as the demo's training can follow it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchvitals.diagnosis import Diagnosis
from torchvitals.record import Finding
from torchvitals.rules.say import num


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A learning rate out of a finding's `change`: the number is the diagnosis's own."""

    finding: Finding
    lr: float
    parameters: tuple[str, ...]
    """Whose; none named: everybody's."""

    def __str__(self) -> str:
        what = f"lr of {', '.join(self.parameters)}" if self.parameters else "lr"
        told = self.finding.change["lr"]
        old = f"from {num(told['from'])} " if isinstance(told, Mapping) and "from" in told else ""
        return f"{what} {old}to {num(self.lr)}"


def recommended(found: Diagnosis) -> Fix | None:
    """The change of the first finding that has a learning rate in it; None when none has."""
    for one in found.findings:
        wanted = one.change.get("lr")
        told = wanted if isinstance(wanted, Mapping) else {"to": wanted}
        value = told.get("to")
        if isinstance(value, int | float) and value > 0:
            parameters = tuple(told.get("parameters") or ())
            return Fix(finding=one, lr=float(value), parameters=parameters)
    return None
