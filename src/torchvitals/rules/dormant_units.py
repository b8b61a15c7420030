"""Units that hardly contribute.

**Shows as** units whose mean activation is below 2.5 % of the layer's.

**Why it hurts**: the layer has less capacity than it seems; in reinforcement learning it predicts
the loss of plasticity.

**Judged by** the share of such units over many batches: more than half is information, more than
90 % a warning. Source: Sokar et al. 2023.

**Known false alarms**: sparse layers on easy tasks.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import places, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "dormant units"
NEEDS = ("activation/rms",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Layers with mostly dormant units."""
    table = run.table("activation", "dormant_frac")
    if not table:
        raise NotChecked("no ReLU-like modules were seen long enough")
    found = {
        site: float(value)
        for site, value in zip(table.sites, table.typical(3), strict=True)
        if value > limits.dormant_share
    }
    if not found:
        return None
    sites = sorted(found, key=lambda s: -found[s])
    worst = found[sites[0]]
    line = table.line(sites[0])
    return finding(
        __name__,
        run,
        severity=WARNING if worst > limits.dormant_warning else INFO,
        sites=sites,
        first_step=int(line.steps[int(np.argmax(line.values > limits.dormant_share))]),
        evidence=[
            evidence(
                f"{share(worst)} of the units of {sites[0]} are dormant, healthy is below "
                f"{share(limits.dormant_share)}",
                Key("activation", sites[0], "dormant_frac"),
                step=int(line.steps[-1]),
                value=worst,
                threshold=limits.dormant_share,
            ),
        ],
        explanation=f"Most units of {places(sites)} hardly put anything out.",
        causes=[
            cause("the layer is wider than the task needs", "pruning them changes nothing", 0.5),
            cause(
                "learning has silenced them (high rate, shifting targets)",
                "their share grew during the training",
                0.5,
            ),
        ],
        fix="re-initialise dormant units every few thousand steps (ReDo), or lower the rate",
        change={"reset_units": sites[:20]},
        confidence=0.45,
    )
