"""All rules, cheap ones first."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from torchvitals.rules.rule import Rule

NAMES = (
    "non_finite",
    "non_finite_input",
    "amp_overflow",
    "lost_updates",
    "adam_eps_dominates",
    "vanishing_gradients",
    "exploding_gradients",
    "gradient_spike",
    "tensor_spike",
    "over_clipping",
    "orphan_parameter",
    "gradients_not_cleared",
    "no_effective_step",
    "update_not_descent",
    "update_ratio",
    "frozen_layer",
    "lr_too_high",
    "lr_too_low",
    "schedule_fault",
    "edge_of_stability",
    "adam_variance_lag",
    "unbalanced_rotation",
    "dead_units",
    "dormant_units",
    "saturation",
    "activation_scale",
    "bad_init",
    "weight_blow_up",
    "over_regularised",
    "attention_logits",
    "attention_collapse",
    "logit_drift",
    "rank_collapse",
    "massive_activations",
    "loss_spike",
    "divergence",
    "plateau",
    "oscillation",
    "loss_at_start",
    "summed_loss",
    "overfitting",
    "input_ignored",
    "train_eval_mismatch",
    "wrong_loss_input",
    "leakage",
    "class_imbalance",
    "input_scale",
    "repeated_batches",
    "data_bound",
    "slow_step",
    "memory_leak",
    "stalled",
    "batch_too_small",
    "replicas_differ",
    "straggler",
)
"""From what breaks a step to what slows it down."""


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, those that read a few columns only first."""
    found = [Rule.of(import_module(f"torchvitals.rules.{name}")) for name in NAMES]
    return tuple(sorted(found, key=lambda rule: not rule.cheap))


def rule(name: str) -> Rule:
    """One rule by its name; KeyError when there is none."""
    return {one.name: one for one in rules()}[name]
