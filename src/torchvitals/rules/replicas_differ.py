"""Replicas of the model are not the same.

**Shows as** parameters that differ between ranks.

**Why it hurts**: each rank trains another model; their averaged gradients belong to neither.

**Judged by** checksums of the parameters, compared every 1,000 steps and by
`monitor.check_replicas()`: `rank/<r>/num_drifted`, any that is not 0. Pieces of sharded parameters
are compared with their copies only.

**Known false alarms**: ranks that train models of their own on purpose, when they ask for the
comparison (`replicas_every`).
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import places
from torchvitals.rules.thresholds import Thresholds

TITLE = "replicas differ"
NEEDS = ("rank/num_drifted",)
CHEAP = True


def check(run: Run, _limits: Thresholds) -> Finding | None:
    """Any difference."""
    table = run.table("rank", "num_drifted")
    bad = np.flatnonzero((table.values > 0).any(axis=1))
    if not len(bad):
        return None
    row = int(bad[0])
    step = int(table.steps[row])
    odd = [s for s, v in zip(table.sites, table.values[row], strict=True) if v > 0]
    layers = [
        str(name)
        for event in run.events("replica_drift")
        if event.step == step
        for name in event.data.get("parameters", ())
    ]
    ranks = places([f"rank {rank}" for rank in odd])
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=layers or [f"rank {rank}" for rank in odd],
        first_step=step,
        evidence=[
            evidence(
                f"{int(np.nanmax(table.values[row]))} parameters of {ranks} differ from the other "
                f"ranks' at step {step}",
                Key("rank", odd[0], "num_drifted"),
                step=step,
                value=float(np.nanmax(table.values[row])),
                threshold=0,
            ),
        ],
        explanation=f"{ranks} and the others hold different weights: they no longer train the same "
        "model.",
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
