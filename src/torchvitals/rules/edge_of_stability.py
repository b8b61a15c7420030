"""The sharpness of the loss is beyond what the learning rate can follow.

**Shows as** the largest eigenvalue of the Hessian above 2/lr: plain gradient descent would
diverge.

**Why it hurts**: the loss swings along the sharpest direction; a spike is near.

**Judged by** a number that is measured on demand: log it as `monitor.log(sharpness=λ_max)`. Above
2/lr in half of the last looks. Source: Cohen et al. 2021.

**Known false alarms**: full-batch gradient descent hovers at 2/lr and is fine; adaptive
optimizers have another limit (38/lr for Adam at β₁ = 0.9), which is used for them.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import INFO, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num
from torchvitals.rules.thresholds import Thresholds

TITLE = "edge of stability"
NEEDS = ("optimizer/lr",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Logged sharpness against 2/lr."""
    line = run.scalar("sharpness").finite
    if len(line) < 3:
        raise NotChecked(
            "measured on demand: log the Hessian's largest eigenvalue, monitor.log(sharpness=…)"
        )
    factor = limits.edge_adam if run.model.is_adam else limits.edge_sgd
    rates = np.array([run.lr_at(int(step)) for step in line.steps])
    with np.errstate(divide="ignore"):
        over = line.values / (factor / rates)
    late = over[-8:]
    if float(np.mean(late > 1.05)) < 0.5:
        return None
    lr, worst = run.lr_now, float(np.median(late))
    target = nice(lr / worst)
    return finding(
        __name__,
        run,
        severity=INFO,
        sites=[ROOT],
        first_step=int(line.steps[int(np.argmax(over > 1.05))]),
        evidence=[
            evidence(
                f"λ_max is {num(worst)} times {num(factor)}/lr",
                Key.scalar("sharpness"),
                step=int(line.steps[-1]),
                value=float(line.values[-1]),
                threshold=factor / lr if lr > 0 else None,
            ),
        ],
        explanation="The loss is sharper than steps of this size can follow.",
        causes=[
            cause(
                "the learning rate is too high here", "a lower rate lets λ_max rise above it", 0.5
            ),
            cause("no warm-up: the sharp start was not left", "λ_max falls during a warm-up", 0.4),
        ],
        fix=f"lower lr from {num(lr)} to {num(target)}, or warm up",
        change=changed("lr", lr, target),
        confidence=0.5,
    )
