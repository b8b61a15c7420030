"""`OnDevice`: the decision where the gradients are, for optimizers that can skip there themselves.

A fused optimizer reads `found_inf` as a tensor: what is 1 there leaves weights, moments and step
counters alone. Nothing waits for the device: the host learns of a decision a step or more later. It
serves `MeanStd` and `Limit`; the recurrences are those of the rules, in tensors.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from torchvitals.guard.rules import Limit, MeanStd, Rule

FLAGGED, NORM, THRESHOLD, FINITE, SCALER = range(5)


class OnDevice:
    """The rule's numbers as tensors on a device."""

    def __init__(self, rule: MeanStd | Limit, device: torch.device) -> None:
        self._rule = rule
        wide = torch.float32 if device.type == "mps" else torch.float64
        self._seen = torch.zeros(3, dtype=wide, device=device)
        if isinstance(rule, MeanStd):
            self._seen.copy_(torch.tensor(rule.state_dict()["seen"], dtype=wide))

    @staticmethod
    def serves(rule: Rule) -> bool:
        """Whether the rule can be judged on a device."""
        return isinstance(rule, MeanStd | Limit)

    def judge(self, norm: Tensor, scaler_found: Tensor | None) -> Tensor:
        """(flagged, norm, threshold, finite, the scaler's flag); good norms are learned."""
        norm = norm.to(self._seen.dtype)
        finite = torch.isfinite(norm)
        threshold = self._threshold()
        scaled = torch.zeros_like(norm) if scaler_found is None else scaler_found.to(norm)
        flagged = ~finite | (norm > threshold)
        self._learn(norm, finite & ~flagged & (scaled == 0))
        return torch.stack([flagged.to(norm), norm, threshold, finite.to(norm), scaled])

    def _threshold(self) -> Tensor:
        rule = self._rule
        if isinstance(rule, Limit):
            return torch.full_like(self._seen[0], rule.high)
        assert isinstance(rule, MeanStd)
        count, mean, var = self._seen
        num = count.clamp(2.0, float(rule.memory or math.inf))
        spread = rule.k * (var * num / (num - 1.0)).sqrt()
        if rule.log:
            limit = (mean + spread.clamp(min=math.log(rule.least))).exp()
        else:
            limit = torch.maximum(mean + spread, rule.least * mean)
        return torch.where(count < rule.warmup, torch.full_like(limit, math.inf), limit)

    def _learn(self, norm: Tensor, good: Tensor) -> None:
        rule = self._rule
        if not isinstance(rule, MeanStd):
            return
        if rule.log:
            good = good & (norm > 0)
            norm = norm.clamp(min=torch.finfo(norm.dtype).tiny).log()
        count, mean, var = self._seen
        weight = 1.0 / (count + 1.0).clamp(max=float(rule.memory or math.inf))
        delta = norm - mean
        after = torch.stack(
            [
                count + 1.0,
                mean + weight * delta,
                (1.0 - weight) * (var + weight * delta * delta),
            ]
        )
        self._seen = torch.where(good, after, self._seen)

    def reset(self) -> None:
        """Forget."""
        self._seen.zero_()

    def bring_home(self) -> None:
        """Write the numbers into the rule. Waits for the device."""
        if isinstance(self._rule, MeanStd):
            self._rule.load_state_dict({"seen": self._seen.tolist()})


def can_skip_itself(optimizer: Optimizer, grads_of: list[Any]) -> bool:
    """Whether it reads `found_inf`, and has its state made.

    In its very first step a fused SGD with momentum would leave buffers behind that were never
    written; that step is skipped from the host.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    if isinstance(optimizer, SGD):
        stateless = all(group["momentum"] == 0 for group in optimizer.param_groups)
        if stateless:
            return True
        return all(optimizer.state.get(p, {}).get("momentum_buffer") is not None for p in grads_of)
    return all(optimizer.state.get(p) for p in grads_of)
