"""Attention has collapsed onto single positions.

**Shows as** an entropy of the attention rows near zero.

**Why it hurts**: a head that always looks at one place learns nothing more; low entropy goes with
instability.

**Judged by** each head's mean entropy: below a tenth of what it was at first and falling, or
below 0.05 nats from the start. Source: Zhai et al. 2023 (σReparam).

**Known false alarms**: heads that copy from the previous token have low entropy by design; single
heads are information.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places
from torchvitals.rules.thresholds import Thresholds

TITLE = "attention entropy collapse"
NEEDS = ("attention/entropy",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Heads without entropy."""
    table = run.table("attention", "entropy")
    if len(table.steps) < 3:
        raise NotChecked("needs three monitored steps")
    first, now = table.head(3).typical(3), table.typical(8)
    sites = [
        site
        for site, begin, value in zip(table.sites, first, now, strict=True)
        if (value < limits.entropy_share * begin and begin > 0.2) or value < limits.entropy_nats
    ]
    if not sites:
        return None
    part = len(sites) / len(table.sites)
    at = table.sites.index(sites[0])
    line = table.line(sites[0])
    low = line.values < max(limits.entropy_share * float(first[at]), limits.entropy_nats)
    return finding(
        __name__,
        run,
        severity=WARNING if part > 0.25 else INFO,
        sites=sites,
        first_step=int(line.steps[int(np.argmax(low))]),
        evidence=[
            evidence(
                f"entropy {num(float(now[at]))} nats in {sites[0]}, {num(float(first[at]))} at "
                "first",
                Key("attention", sites[0], "entropy"),
                step=int(line.steps[-1]),
                value=float(now[at]),
                threshold=limits.entropy_share * float(first[at]),
            ),
            evidence(f"{len(sites)} of {len(table.sites)} heads"),
        ],
        explanation=f"{places(sites)} attend to single positions, whatever the input.",
        causes=[
            cause("queries and keys grew too large", "the largest logit is above 50", 0.6),
            cause(
                "the learning rate is too high", "entropy fell while the rate was at its peak", 0.4
            ),
        ],
        fix="normalise queries and keys (QK-norm) and lower the peak learning rate by 3",
        change={"qk_norm": {"from": False, "to": True}},
        confidence=0.6 if part > 0.25 else 0.35,
    )
