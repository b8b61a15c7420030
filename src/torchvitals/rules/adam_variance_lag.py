"""Adam's second moment lags behind the gradients.

**Shows as** g² far above v: the update is several times larger than the learning rate says.

**Why it hurts**: loss spikes follow within a few steps.

**Judged by** √mean(g²/max(v̂, ε²)) of the upper quarter of the weights above 2.3 in three of the
last eight looks. Source: Wortsman et al. 2023 (stable low-precision training).

**Known false alarms**: embeddings see rare tokens and are exempt.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.table import quantile
from torchvitals.rules.thresholds import Thresholds

TITLE = "Adam's v lags"
NEEDS = ("optimizer/g2_over_v_rms",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Several looks with g² ≫ v."""
    table = run.weights("optimizer", "g2_over_v_rms")
    table = table.pick([s for s in table.sites if not run.model.is_embedding(s)])
    if len(table.steps) < limits.moment_checks:
        raise NotChecked(f"needs {limits.moment_checks} looks at Adam's moments")
    upper = quantile(table.values, 0.75)
    lagging = upper > limits.lag_ratio
    # Any stretch of eight looks counts: what is over has left its mark.
    counts = np.convolve(lagging, np.ones(8), "valid") if len(lagging) >= 8 else [lagging.sum()]
    if np.max(counts) < limits.lag_checks:
        return None
    at = int(np.argmax(np.where(lagging, upper, 0)))
    step, value = int(table.steps[at]), float(upper[at])
    site = table.sites[int(np.nanargmax(table.values[at]))]
    betas = run.model.option("betas")
    beta2 = float(betas[1]) if isinstance(betas, list | tuple) and len(betas) > 1 else 0.999
    target = 0.99 if beta2 > 0.99 else 0.95
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=[site],
        first_step=int(table.steps[lagging][0]),
        last_step=int(table.steps[lagging][-1]),
        evidence=[
            evidence(
                f"√(g²/v) is {num(value)} in the upper quarter of the weights at step {step}, "
                f"healthy is below {num(limits.lag_ratio)}",
                Key("optimizer", site, "g2_over_v_rms"),
                step=step,
                value=value,
                threshold=limits.lag_ratio,
            ),
            evidence(
                f"in {int(lagging.sum())} of {len(lagging)} looks; β2 is {num(beta2)}: v "
                f"remembers {num(1 / (1 - beta2))} steps"
            ),
        ],
        explanation=(
            f"Gradients have become larger than Adam's v knows (it averages over about "
            f"{num(1 / (1 - beta2))} steps): steps are {num(value)} times as large as lr says."
        ),
        causes=[
            cause(
                f"β2 = {num(beta2)} is too slow for how fast the gradients change",
                f"with β2 = {num(target)} the ratio stays near 1",
                0.7 if beta2 > 0.999 else 0.5,
            ),
            cause("the data changed suddenly", "loss and gradient norm jump at the same step", 0.5),
        ],
        fix=f"lower beta2 from {num(beta2)} to {num(target)}, or clip the update (AdamW with "
        "update clipping)",
        change=changed("beta2", beta2, target),
        confidence=0.75,
    )
