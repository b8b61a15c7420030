"""A step used gradients of an earlier step.

**Shows as** gradients and steps that grow with time, a loss that first falls fast, then swings.

**Why it hurts**: each step repeats all earlier ones; it is momentum without decay.

**Judged by** the wiring: gradients of the step before were still there when this step's first
backward began; or `step()` ran with gradients but without any backward since the last one. In at
least half of the monitored steps, two or more.

**Known false alarms**: none known; micro-batches that add up within a step are not counted.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import ERROR, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import share
from torchvitals.rules.thresholds import Thresholds

TITLE = "gradients not cleared"
NEEDS = ("gradient/stale",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Leftover gradients, or steps without a backward pass."""
    stale = run.root("gradient", "stale")
    # Nothing can be left over from before the first step.
    later = stale.after(run.first_step) if len(stale) > 1 else stale
    if len(later) and later.values.sum() >= limits.wiring_checks - 1:
        part = float(np.mean(later.values > 0))
        if part >= limits.stale_share:
            return _leftover(run, later.steps[later.values > 0], part, limits)
    return _repeated(run, limits)


def _leftover(run: Run, steps: np.ndarray, part: float, limits: Thresholds) -> Finding:
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[ROOT],
        first_step=int(steps[0]),
        evidence=[
            evidence(
                f"at {share(part)} of the monitored steps the gradients of the step before were "
                "still there when backward began, healthy is 0 %",
                Key("gradient", ROOT, "stale"),
                step=int(steps[-1]),
                value=part,
                threshold=limits.stale_share,
            )
        ],
        explanation=(
            "The gradients are not set to zero between steps: each step adds its gradient to all "
            "earlier ones, so that updates grow and point into the past."
        ),
        causes=[
            cause(
                "optimizer.zero_grad() is not called, or not in every step",
                "p.grad is not None, and not zero, just before loss.backward()",
                0.9,
            ),
            cause(
                "it is called on another optimizer or model than the one that is trained",
                "zero_grad() is there, and p.grad of this model survives it",
                0.1,
            ),
        ],
        fix="call optimizer.zero_grad() once in every step, before loss.backward()",
        change={"zero_grad": {"from": False, "to": True}},
        confidence=0.97,
    )


def _repeated(run: Run, limits: Thresholds) -> Finding | None:
    """step() without backward, on gradients that are still there."""
    passes, norms = run.root("gradient", "num_backward"), run.root("gradient", "norm")
    if len(passes) < limits.wiring_checks:
        return None
    idle = passes.steps[passes.values == 0]
    held = norms.steps[norms.values > 0]
    steps = np.intersect1d(idle, held)
    if len(steps) < limits.wiring_checks - 1 or len(steps) < limits.idle_share * len(passes):
        return None
    part = len(steps) / len(passes)
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[ROOT],
        first_step=int(steps[0]),
        evidence=[
            evidence(
                f"{share(part)} of the monitored steps had no backward pass since the last step, "
                "and stepped on the gradients that were left",
                Key("gradient", ROOT, "num_backward"),
                step=int(steps[-1]),
                value=0,
                threshold=1,
            )
        ],
        explanation=(
            "optimizer.step() is called more often than backward(): some steps apply the same "
            "gradient again."
        ),
        causes=[
            cause(
                "step() stands outside the condition that backward() is in (accumulation)",
                "count both calls over ten iterations: they should be equal, or backward() more",
                0.8,
            ),
            cause("an exception in backward() is swallowed", "look for try/except around it", 0.2),
        ],
        fix="call optimizer.step() only after backward(), and zero_grad() after each step",
        change={"zero_grad": {"from": False, "to": True}},
        confidence=0.9,
    )
