"""Replicas of the model are not the same.

**Shows as** parameters that differ between ranks.

**Why it hurts**: each rank trains another model; their averaged gradients belong to neither.

**Judged by** a checksum of the parameters of each rank, `rank/<r>/checksum`: any difference.

**Known false alarms**: none for plain data parallel training; sharded parameters differ by
design.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import places
from torchvitals.rules.thresholds import Thresholds

TITLE = "replicas differ"
NEEDS = ("rank/checksum",)
CHEAP = True


def check(run: Run, _limits: Thresholds) -> Finding | None:
    """Any difference."""
    table = run.table("rank", "checksum")
    if len(table.sites) < 2:
        return None
    spread = np.nanmax(table.values, axis=1) - np.nanmin(table.values, axis=1)
    bad = np.flatnonzero(spread > 0)
    if not len(bad):
        return None
    row = int(bad[0])
    middle = float(np.nanmedian(table.values[row]))
    odd = [f"rank {s}" for s, v in zip(table.sites, table.values[row], strict=True) if v != middle]
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=odd or ["ranks"],
        first_step=int(table.steps[row]),
        evidence=[
            evidence(
                f"the checksums of {places(odd)} differ from the others' at step "
                f"{int(table.steps[row])}",
                Key("rank", table.sites[0], "checksum"),
                step=int(table.steps[row]),
                value=float(spread[row]),
                threshold=0,
            ),
        ],
        explanation="The ranks hold different weights: they no longer train the same model.",
        causes=[
            cause(
                "a rank loaded another checkpoint, or was seeded differently without DDP",
                "they differ at the first step",
                0.6,
            ),
            cause(
                "a parameter outside DDP, or a step that one rank skipped",
                "they differ from one step on",
                0.5,
            ),
        ],
        fix="broadcast the parameters of rank 0 (DDP does it when it is made), then find what "
        "differs",
        change={"broadcast": True},
        confidence=0.95,
    )
