"""The learning rate is too low.

**Shows as** a loss that falls slowly and steadily, or not at all, with tiny steps and no noise
floor.

**Why it hurts**: the run would need ten to ten thousand times as many steps.

**Judged by** the update ratio of the upper quarter of the weights (healthy early on: 1e-3 … 1e-2)
and by a loss that has hardly fallen. Source: the stability guide's bands by phase.

**Known false alarms**: fine-tuning with small steps on purpose; it is silent once the loss has
fallen.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, share
from torchvitals.rules.steps import FULL
from torchvitals.rules.table import quantile
from torchvitals.rules.thresholds import Thresholds

TITLE = "learning rate too low"
NEEDS = ("loss", "update/ratio", "optimizer/lr")


UPPER = 3.0
"""The upper quarter of the weights moves about so many times as far as the median one."""

FRESH = 2.0
"""Weights that have hardly begun to move may take steps so many times the usual size."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Tiny steps and a loss that hardly moves."""
    loss, ratios = run.loss, run.weights("update", "ratio")
    if len(loss) < limits.lr_low_points or len(ratios.steps) < 3:
        raise NotChecked(f"needs {limits.lr_low_points} losses and three monitored steps")
    lr = run.lr_peak
    full = [run.lr_at(int(step)) >= FULL * lr for step in ratios.steps]
    values = ratios.values[np.array(full, dtype=bool)]
    values = values[(values > 0).any(axis=1)]
    if not len(values) or not lr > 0 or not loss.falls:
        return None
    upper = quantile(np.where(values > 0, values, np.nan), 0.75)
    size = float(np.median(upper))
    if not size < limits.lr_low_ratio or loss.fallen > limits.lr_low_fallen:
        return None
    if loss.best < limits.solved_share * loss.start:
        return None  # it did learn; nothing is left to learn
    factor = float(np.clip(FRESH * UPPER * limits.lr_good_ratio / size, 3.0, 1e5))
    target = nice(lr * factor)
    severe = size < 0.1 * limits.lr_low_ratio and loss.fallen < 0.5 * limits.lr_low_fallen
    return finding(
        __name__,
        run,
        severity=ERROR if severe else WARNING,
        sites=[ROOT],
        first_step=run.first_step,
        evidence=[
            evidence(
                f"three weights in four move by less than {num(size)} of themselves a step, "
                f"healthy is above {num(limits.lr_low_ratio)}",
                Key("update", ROOT, "ratio"),
                step=run.last_step,
                value=size,
                threshold=limits.lr_low_ratio,
            ),
            evidence(
                f"the loss fell by {share(max(loss.fallen, 0.0))} in {run.last_step} steps "
                f"({num(loss.start)} → {num(loss.now)})",
                Key.scalar(loss.name),
                step=run.last_step,
                value=loss.now,
            ),
        ],
        explanation=(
            f"With lr {num(lr)} the weights change by about {num(size)} of themselves a step: in "
            f"{run.last_step} steps the loss fell by only {share(max(loss.fallen, 0.0))}."
        ),
        causes=[
            cause(
                "the learning rate is too low",
                f"a short run with lr {num(target)} falls {num(factor)} times as fast",
                0.8,
            ),
            cause(
                "the gradients are too small (vanishing, clipped far down, divided by the batch)",
                "with SGD: the gradient norm is far below 0.01; with Adam the size does not matter",
                0.3,
            ),
            cause(
                "the schedule holds the rate down",
                "the rate in the optimizer is not the one in your config",
                0.15,
            ),
        ],
        fix=f"raise lr from {num(lr)} to {num(target)}",
        change=changed("lr", lr, target),
        confidence=min(0.95, 0.6 + 0.1 * np.log10(limits.lr_low_ratio / size)),
    )
