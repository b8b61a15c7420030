"""A rule of one's own: most of the time goes into waiting for data.

Once installed it is used wherever runs are diagnosed. A rule is a module or an object with `NAME`
and `check(run, thresholds)`, which looks at a run (a `torchvitals.History`) and returns a
`Finding`, or None when all is well.
"""

from typing import Any

import numpy as np

from torchvitals import History
from torchvitals.record import ROOT, Evidence, Finding, Severity

NAME = "slow_data"
DATA, STEP = "clock/data/wall_s", "clock/step/wall_s"
SHARE = 0.5
"""Of the step's time."""
LEAST = 5
"""Monitored steps, before it says anything."""


def check(run: History, thresholds: Any) -> Finding | None:
    """The last steps' waiting, beside the steps' length."""
    if not run.keys("clock", "^data$", "wall_s"):
        return None
    steps, waits = run.series(DATA)
    lengths = run.series(STEP).values
    if len(steps) < LEAST:
        return None
    share = float(np.median(waits[-100:]) / np.median(lengths[-100:]))
    if not share > SHARE:
        return None
    return Finding(
        name=NAME,
        severity=Severity.WARNING,
        sites=(ROOT,),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        evidence=(
            Evidence(
                text=f"waiting for data takes {share:.0%} of a step, healthy is below {SHARE:.0%}",
                key=DATA,
                value=share,
                threshold=SHARE,
            ),
        ),
        explanation="The model waits for the loader most of the time.",
        fix="give the DataLoader more workers (num_workers), or prepare the data beforehand",
        confidence=0.9,
    )
