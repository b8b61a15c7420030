"""`Probes`: the probes of one monitor."""

from __future__ import annotations

from typing import Any

from torchvitals.probes.activations import Activations
from torchvitals.probes.attention import Attention
from torchvitals.probes.gradients import Gradients
from torchvitals.probes.optimizer_state import OptimizerState
from torchvitals.probes.updates import Updates


class Probes:
    """The probes of one monitor, in the order in which they build on each other."""

    def __init__(
        self,
        gradients: Gradients | None,
        updates: Updates | None,
        optimizer_state: OptimizerState | None,
        activations: Activations | None,
        attention: Attention | None,
    ) -> None:
        self.gradients = gradients
        self.updates = updates
        self.optimizer_state = optimizer_state
        self.activations = activations
        self.attention = attention

    def in_order(self) -> list[tuple[str, Any]]:
        """(name, probe) of those that are there."""
        named = [
            ("gradients", self.gradients),
            ("updates", self.updates),
            ("optimizer state", self.optimizer_state),
            ("activations", self.activations),
            ("attention", self.attention),
        ]
        return [(name, probe) for name, probe in named if probe is not None]
