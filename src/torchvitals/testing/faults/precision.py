"""Numbers too small for what they are added to."""

from __future__ import annotations

from torchvitals.testing.fault import Fault
from torchvitals.testing.settings import Settings


class LargeEpsilon(Fault):
    """Adam's ε = 1e-3 swallows the second moments."""

    number, id, bases = 23, "eps-1e-3", "G"
    names = ("adam_eps_dominates",)
    numeric_fix = True

    def settings(self, settings: Settings) -> None:
        """Against gradients of 1e-4 (full dose: 1e-2)."""
        settings.eps = 1e-3 if self.mild else 1e-2


class PureBfloat16(Fault):
    """Weights kept in bfloat16, learning rate 1e-5: updates round to nothing."""

    number, id, bases = 24, "bf16-weights", "MG"
    names = ("lost_updates", "lr_too_low", "update_ratio")
    variant = {"optimizer": "adamw"}  # noqa: RUF012

    def settings(self, settings: Settings) -> None:
        """Both."""
        settings.dtype = "bfloat16"
        settings.lr = 1e-5
