"""`Hand`: keeps the books of a healthy training whose loop is written by hand."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchvitals.testing.outcome import Outcome


@dataclass
class Hand:
    """Collects losses; `outcome` closes the books."""

    seed: int
    steps: int
    losses: list[float] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    settings: dict[str, Any] = field(default_factory=dict)

    def note(self, loss: Tensor | float) -> None:
        """The loss of a step."""
        self.losses.append(float(loss.detach()) if isinstance(loss, Tensor) else loss)

    def outcome(
        self,
        *,
        test_loss: float | None = None,
        test_accuracy: float | None = None,
        **reported: float,
    ) -> Outcome:
        """How it ended."""
        tail = self.losses[-max(1, len(self.losses) // 10) :]
        seconds = time.perf_counter() - self.began
        return Outcome(
            case="",
            seed=self.seed,
            steps=self.steps,
            train_loss=statistics.fmean(tail),
            test_loss=test_loss,
            test_accuracy=test_accuracy,
            reported=reported,
            seconds=seconds,
            settings=self.settings,
        )
