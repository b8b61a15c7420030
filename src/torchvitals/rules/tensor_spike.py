"""The gradient of a single tensor jumped, though the overall norm hides it.

**Shows as** one layer's gradient far above its own past in one step.

**Why it hurts**: Adam's moments of that layer are off for long after; a global clip does not see
it.

**Judged by** each tensor's gradient norm against its own running level: more than 50 times, after
16 monitored steps. Source: SPAM and AdaGC clip such tensors one by one.

**Known false alarms**: embeddings and experts that are rarely used are exempt; it is information.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places
from torchvitals.rules.thresholds import Thresholds

TITLE = "spike of a single tensor"
NEEDS = ("gradient/norm",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """A running level of each tensor that never learns from what it flags."""
    table = run.parameters("gradient", "norm")
    if len(table.steps) < limits.spike_least:
        raise NotChecked(f"needs {limits.spike_least} monitored steps")
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(table.values > 0, np.log(table.values), np.nan)
    level = np.nanmedian(
        np.where(np.isnan(logs[: limits.spike_least]), -20.0, logs[: limits.spike_least]), axis=0
    )
    limit = np.log(limits.tensor_spike)
    worst: tuple[float, int, int] | None = None
    for row in range(limits.spike_least, len(logs)):
        with np.errstate(invalid="ignore"):
            over = logs[row] - level
            high = over > limit
        if high.any() and high.sum() <= 0.2 * len(high) + 1:
            at = int(np.nanargmax(np.where(high, over, np.nan)))
            site = table.sites[at]
            rare = run.model.is_embedding(site) or level[at] < -19
            if not rare and (worst is None or over[at] > worst[0]):
                worst = float(over[at]), row, at
        calm = ~(high | np.isnan(over))
        level[calm] += 0.1 * over[calm]
    if worst is None:
        return None
    over, row, at = worst
    step, site, factor = int(table.steps[row]), table.sites[at], float(np.exp(over))
    return finding(
        __name__,
        run,
        severity=INFO,
        sites=[site],
        first_step=step,
        last_step=step,
        evidence=[
            evidence(
                f"the gradient of {site} was {num(factor)} times its usual size at step {step}",
                Key("gradient", site, "norm"),
                step=step,
                value=float(table.values[row, at]),
                threshold=limits.tensor_spike,
            ),
        ],
        explanation=f"At step {step} the gradient of {places([site])} alone jumped "
        f"{num(factor)}-fold.",
        causes=[
            cause(
                "rare inputs that only this layer sees",
                "the batch holds unusual tokens or classes",
                0.5,
            ),
            cause("the layer is becoming unstable", "its spikes come more often", 0.4),
        ],
        fix=f"clip the gradient of {site} by itself, at 1.05 times its running norm (AdaGC)",
        change={"clip_per_tensor": 1.05},
        confidence=0.5,
    )
