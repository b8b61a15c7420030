"""Updates are smaller than the last bit of low-precision weights.

**Shows as** most elements of a bfloat16 or float16 weight not changing in a step although they
have a gradient.

**Why it hurts**: what is rounded away is lost for good; learning stops early, unnoticed.

**Judged by** the share of elements with Δw = 0 in bf16 or fp16 weights: more than half of the
elements of the median weight, over the last monitored steps.

**Known false alarms**: a learning rate that is annealed to nothing; steps below a tenth of the
peak rate are not counted.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "lost low-precision updates"
NEEDS = ("update/zero_frac",)

LOW = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Weights of low precision that hardly take up their updates."""
    low = [p for p in run.model.weights if run.model.dtype(p).removeprefix("torch.") in LOW]
    if not low:
        return None
    zeros, slopes = run.table("update", "zero_frac").pick(low), run.table("gradient", "zero_frac")
    full = np.array([run.lr_at(int(s)) >= 0.1 * run.lr_peak > 0 for s in zeros.steps], dtype=bool)
    if full.sum() < limits.lost_checks:
        return None
    values = zeros.values[full][-8:]
    typical = np.array([np.nanmedian(column) for column in values.T])
    # Elements without a gradient can't move either.
    idle = {s: np.nanmedian(slopes.line(s).last(8)) for s in zeros.sites if s in slopes.sites}
    lost = {
        site: float(value)
        for site, value in zip(zeros.sites, typical, strict=True)
        if value - idle.get(site, 0.0) > limits.lost_share and not run.model.is_embedding(site)
    }
    if len(lost) < 0.5 * len(zeros.sites):
        return None
    sites = sorted(lost, key=lambda s: -lost[s])
    dtype = run.model.dtype(sites[0]).removeprefix("torch.")
    worst = float(np.median(list(lost.values())))
    lr = run.lr_peak
    return finding(
        __name__,
        run,
        severity=ERROR if worst > limits.lost_error else WARNING,
        sites=sites,
        first_step=int(zeros.steps[full][0]),
        evidence=[
            evidence(
                f"{share(worst)} of the elements of the median {dtype} weight did not change, "
                f"healthy is below {share(limits.lost_share)}",
                Key("update", sites[0], "zero_frac"),
                step=int(zeros.steps[-1]),
                value=worst,
                threshold=limits.lost_share,
            ),
            evidence(f"{dtype} resolves steps of {num(LOW[dtype])} of a weight"),
        ],
        explanation=(
            f"The weights are kept in {dtype}, which resolves {num(LOW[dtype])} of their size; "
            "with "
            f"lr {num(lr)} {share(worst)} of the updates are smaller and are rounded away."
        ),
        causes=[
            cause(
                f"weights are kept in {dtype} alone",
                "a float32 copy of the weights (master weights) learns at the same rate",
                0.85,
            ),
            cause("the learning rate is very small", "lr × 100 changes most elements", 0.4),
        ],
        fix=(
            f"keep the weights in float32 and compute in {dtype} with torch.autocast "
            f"({places(sites, 2)})"
        ),
        change={"dtype": {"from": dtype, "to": "float32"}},
        confidence=0.93,
    )
