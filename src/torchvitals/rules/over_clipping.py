"""Clipping cuts nearly every step down.

**Shows as** gradient norms above the limit in most steps; the steps' length is set by the limit
alone.

**Why it hurts**: with SGD the effective learning rate is lr × limit / norm, far below what was
chosen; with Adam it is milder, but differences between steps are lost.

**Judged by** the share of clipped steps (more than half) and by how much: norms ten times the
limit are a warning. Clipping by less is common and told as information.

**Known false alarms**: large language models clip at 1.0 throughout; norms below ten times the
limit are never a warning.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import (
    ERROR,
    INFO,
    WARNING,
    NotChecked,
    cause,
    changed,
    evidence,
    finding,
)
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "over-clipping"
NEEDS = ("gradient/clip_ratio",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Most steps clipped, and by much."""
    ratios = run.root("gradient", "clip_ratio").finite
    norms = run.root("gradient", "norm").finite
    if not ratios:
        return None
    if len(ratios) < limits.clip_checks:
        raise NotChecked(f"needs {limits.clip_checks} monitored steps")
    last = ratios.last(64)
    part, typical = float(np.mean(last > 1)), float(np.median(last))
    if part <= limits.clip_share or typical < limits.clip_info:
        return None
    common, mine, theirs = np.intersect1d(norms.steps, ratios.steps, return_indices=True)
    limits_used = norms.values[mine] / ratios.values[theirs] if len(common) else np.empty(0)
    limit = float(np.median(limits_used[-8:])) if len(common) else float("nan")
    target = float(f"{np.quantile(norms.last(64), 0.9):.2g}") if norms else float("nan")
    stuck = run.loss.falls and run.loss.fallen < 0.2
    severity = INFO
    if typical > limits.clip_ratio:
        severity = ERROR if typical > 100 * limits.clip_ratio and stuck else WARNING
    return finding(
        __name__,
        run,
        severity=severity,
        sites=[ROOT],
        first_step=int(ratios.steps[int(np.argmax(ratios.values > 1))]),
        evidence=[
            evidence(
                f"{share(part)} of the steps are clipped; norms are {num(typical)} times the limit "
                f"{num(limit)}",
                Key("gradient", ROOT, "clip_ratio"),
                step=int(ratios.steps[-1]),
                value=typical,
                threshold=limits.clip_ratio,
            )
        ],
        explanation=(
            f"Gradients are cut to {num(limit)} in {share(part)} of the steps, to 1/{num(typical)} "
            "of their size: the limit, not the learning rate, sets how far each step goes."
        ),
        causes=[
            cause(
                "the limit is too low for this model",
                f"norms are around {num(target)} while the loss falls normally",
                0.75,
            ),
            cause(
                "the gradients are too large",
                "the norm is far above 1 although the loss is a mean and inputs are normalised",
                0.3,
            ),
        ],
        fix=f"raise the limit from {num(limit)} to {num(target)} (the 90th percentile of the "
        "norms)",
        change=changed("max_norm", limit, target),
        confidence=0.9 if typical > limits.clip_ratio else 0.4,
    )
