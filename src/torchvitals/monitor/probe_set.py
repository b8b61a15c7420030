"""`Probes`: the probes of one monitor."""

from __future__ import annotations

from typing import Any

from torchvitals.probes.activations import Activations
from torchvitals.probes.attention import Attention
from torchvitals.probes.criterion import Criterion
from torchvitals.probes.gradients import Gradients
from torchvitals.probes.inputs import Inputs
from torchvitals.probes.optimizer_state import OptimizerState
from torchvitals.probes.scaler import Scaler
from torchvitals.probes.updates import Updates
from torchvitals.probes.weights import Weights
from torchvitals.probes.wiring import Wiring

Seer = Activations | Attention | Inputs | Criterion | Wiring


class Probes:
    """The probes of one monitor, in the order in which they build on each other."""

    def __init__(
        self,
        *,
        gradients: Gradients | None,
        updates: Updates | None,
        optimizer_state: OptimizerState | None,
        activations: Activations | None,
        attention: Attention | None,
        inputs: Inputs | None = None,
        criterion: Criterion | None = None,
        wiring: Wiring | None = None,
        weights: Weights | None = None,
        scaler: Scaler | None = None,
    ) -> None:
        self.gradients = gradients
        self.updates = updates
        self.optimizer_state = optimizer_state
        self.activations = activations
        self.attention = attention
        self.inputs = inputs
        self.criterion = criterion
        self.wiring = wiring
        self.weights = weights
        self.scaler = scaler
        named = [
            ("gradients", gradients),
            ("updates", updates),
            ("optimizer state", optimizer_state),
            ("activations", activations),
            ("attention", attention),
            ("inputs", inputs),
            ("loss functions", criterion),
            ("wiring", wiring),
            ("weights", weights),
            ("scaler", scaler),
        ]
        self.in_order: list[tuple[str, Any]] = [
            (n, probe) for n, probe in named if probe is not None
        ]
        """(name, probe) of those that are there."""
        found = (activations, attention, inputs, criterion, wiring)
        self.seers: list[Seer] = [probe for probe in found if probe is not None]
        """Those that look while the model runs."""
