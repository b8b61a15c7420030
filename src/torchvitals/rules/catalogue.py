"""All rules, cheap ones first."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from torchvitals.rules.rule import Rule

NAMES = (
    "non_finite",
    "non_finite_input",
    "vanishing_gradients",
    "exploding_gradients",
    "gradient_spike",
    "over_clipping",
    "orphan_parameter",
    "gradients_not_cleared",
    "no_effective_step",
    "frozen_layer",
    "lr_too_high",
    "lr_too_low",
    "schedule_fault",
    "dead_units",
    "saturation",
    "bad_init",
    "loss_spike",
    "divergence",
    "plateau",
)
"""In the order of CHECKS.md."""


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, those that read a few columns only first."""
    found = [Rule.of(import_module(f"torchvitals.rules.{name}")) for name in NAMES]
    return tuple(sorted(found, key=lambda rule: not rule.cheap))


def rule(name: str) -> Rule:
    """One rule by its name; KeyError when there is none."""
    return {one.name: one for one in rules()}[name]
