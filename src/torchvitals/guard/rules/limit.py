"""`Limit`: a fixed number. Nothing to learn, no warm-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torchvitals.guard.rules.rule import Judged, Rule, positive


class Limit(Rule):
    """Flags what exceeds `high`."""

    name: ClassVar[str] = "limit"

    def __init__(self, high: float) -> None:
        self.high = positive("limit", high)

    def judge(self, value: float) -> Judged:
        """Against the limit."""
        return Judged(value > self.high, self.high, self.high)

    def learn(self, value: float) -> None:
        """Nothing."""

    def reset(self) -> None:
        """Nothing."""

    def stats(self) -> dict[str, float]:
        """None."""
        return {}

    def fresh(self) -> Limit:
        """The same."""
        return Limit(self.high)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing."""
