"""Layers turn at very different speeds.

**Shows as** weights whose direction changes ten and more times as fast as that of others.

**Why it hurts**: the effective learning rate differs from layer to layer; the slow ones lag
behind.

**Judged by** the update ratio (about the angle a step, in radians) of the weights: the 90th
percentile more than 30 times the 10th. Information. Source: Kosson et al. 2024 (rotational
equilibrium).

**Known false alarms**: frozen layers, embeddings and layers with a rate of their own.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "unbalanced rotation"
NEEDS = ("update/ratio",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """The spread of the ratios."""
    table = run.weights("update", "ratio")
    if run.last_step < limits.rotation_steps or len(table.steps) < 8:
        raise NotChecked(f"needs {limits.rotation_steps} steps, eight of them monitored")
    found = {
        site: float(value)
        for site, value in zip(table.sites, table.typical(8), strict=True)
        if value > 1e-12 and not run.model.is_embedding(site)
    }
    if len(found) < 4:
        return None
    low, high = np.quantile(list(found.values()), [0.1, 0.9])
    if high / low < limits.rotation_spread:
        return None
    sites = sorted(found, key=lambda s: found[s])
    slow, fast = sites[0], sites[-1]
    return finding(
        __name__,
        run,
        severity=INFO,
        sites=[slow, fast],
        first_step=int(table.steps[-8]),
        evidence=[
            evidence(
                f"{fast} turns by {num(found[fast])} a step, {slow} by {num(found[slow])}; the "
                f"spread is {num(high / low)}, even is below {num(limits.rotation_spread)}",
                Key("update", slow, "ratio"),
                step=int(table.steps[-1]),
                value=float(high / low),
                threshold=limits.rotation_spread,
            ),
        ],
        explanation="Some layers learn many times as fast as others.",
        causes=[
            cause(
                "weights of very different size without weight decay to even them out",
                "the slow layers have the largest weight norms",
                0.5,
            ),
            cause(
                "gradients that differ by orders of magnitude (SGD)",
                "the gradient RMS follows the same order",
                0.5,
            ),
        ],
        fix="use AdamW with weight decay 0.1, or a parameter group with a higher lr for the "
        "slow ones",
        change={"weight_decay": {"to": 0.1}},
        confidence=0.4,
    )
