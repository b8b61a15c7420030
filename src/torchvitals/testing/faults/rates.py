"""Learning rates, schedules, decay, clipping and batch sizes that are off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, StepLR

from torchvitals.testing.fault import Fault
from torchvitals.testing.settings import Settings
from torchvitals.testing.training import Training


class RateTooHigh(Fault):
    """The learning rate is 100 times (mild: 30 times) what it should be."""

    number, id, bases = 1, "lr-times-100", "MCG"
    names = ("lr_too_high", "update_ratio", "divergence")
    numeric_fix = True

    def settings(self, settings: Settings) -> None:
        """Times 100."""
        settings.lr *= 30 if self.mild else 100


class RateTooLow(Fault):
    """The learning rate is 1e-4 times (mild: 1e-3 times) what it should be."""

    number, id, bases = 2, "lr-times-1e-4", "MCG"
    names = ("lr_too_low", "update_ratio")
    numeric_fix = True

    def settings(self, settings: Settings) -> None:
        """Times 1e-4."""
        settings.lr *= 1e-3 if self.mild else 1e-4


class NoWarmUp(Fault):
    """No warm-up, and ten times the learning rate."""

    number, id, bases = 3, "no-warm-up", "G"
    names = ("lr_too_high", "update_ratio", "schedule_fault", "divergence")
    numeric_fix = True

    def settings(self, settings: Settings) -> None:
        """Neither warm-up nor measure."""
        settings.warmup_steps = 0
        settings.lr *= 10


class RateSpike(Fault):
    """For a few steps the learning rate is huge: ReLUs are pushed off and never come back."""

    number, id, bases = 10, "lr-spike", "C"
    names = ("dead_units", "schedule_fault", "lr_too_high", "divergence")
    # A normalised network recovers, and SGD goes to NaN at once.
    variant = {"norm": False, "optimizer": "adamw", "lr": 2e-3}  # noqa: RUF012

    def settings(self, settings: Settings) -> None:
        """Once, early enough to hurt."""
        self.onset = max(2, settings.steps // 3)

    def lr_factor(self, step: int) -> float:
        """Eight steps long."""
        return (20.0 if self.mild else 40.0) if 0 <= step - self.onset < 8 else 1.0


class RateJump(Fault):
    """From one step on the learning rate is 30 times higher."""

    number, id, bases = 21, "lr-jump", "G"
    names = ("schedule_fault", "lr_too_high", "update_ratio", "divergence", "loss_spike")
    numeric_fix = True
    jump = 30.0

    def settings(self, settings: Settings) -> None:
        """In the middle."""
        self.onset = self.middle(settings.steps)

    def apply(self, settings: Settings, change: Mapping[str, Any]) -> list[str]:
        """A recommended rate is one for after the jump."""
        wanted = change.get("lr", change.get("learning_rate"))
        if isinstance(wanted, Mapping) and wanted.get("from") and wanted.get("to"):
            self.jump *= float(wanted["to"]) / float(wanted["from"])
            return ["lr"]
        return super().apply(settings, change)

    def lr_factor(self, step: int) -> float:
        """30 after the jump."""
        return self.jump if step >= self.onset else 1.0


class Decay(Fault):
    """Weight decay 10 (mild: 3)."""

    number, id, bases = 26, "weight-decay-10", "M"
    names = ("over_regularised",)
    numeric_fix = True
    variant = {"optimizer": "adamw", "lr": 3e-3}  # noqa: RUF012

    def settings(self, settings: Settings) -> None:
        """Weights shrink by a few per cent a step."""
        settings.weight_decay = 3.0 if self.mild else 10.0


class TightClip(Fault):
    """Gradients are clipped to a norm of 1e-4 (mild: 1e-3)."""

    number, id, bases = 27, "clip-1e-4", "C"
    names = ("over_clipping",)
    numeric_fix = True

    def settings(self, settings: Settings) -> None:
        """Every step is clipped."""
        settings.clip_norm = 1e-3 if self.mild else 1e-4


class BatchOfOne(Fault):
    """One sequence a batch, at ten times the learning rate."""

    number, id, bases = 41, "batch-1", "G"
    names = ("batch_too_small", "lr_too_high", "update_ratio", "oscillation")
    numeric_fix = True

    def settings(self, settings: Settings) -> None:
        """Noise."""
        settings.batch_size = 1
        settings.lr *= 5 if self.mild else 10


class ScheduleByBatch(Fault):
    """A schedule meant for epochs is stepped once a batch: the rate is gone after some steps."""

    number, id, bases = 42, "scheduler-per-batch", "G"
    names = ("schedule_fault", "lr_too_low")

    def scheduler(self, training: Training) -> LRScheduler:
        """Times 0.7 an epoch was meant."""
        return StepLR(training.optimizer, step_size=5 if self.mild else 2, gamma=0.7)
