"""The training waits for data.

**Shows as** a large share of each step spent waiting for the next batch.

**Why it hurts**: the accelerator idles; the run takes longer than it has to.

**Judged by** the waiting of `monitor.data(loader)`: more than 30 % of the step over the last 16
monitored steps, at steps of at least 5 ms.

**Known false alarms**: tiny models on tiny batches, where a step takes no time: information.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "data-bound"
NEEDS = ("clock/wall_s",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Waiting over step time."""
    wait, step = (
        run.line("clock", "data", "wall_s").finite,
        run.line("clock", "step", "wall_s").finite,
    )
    common, mine, theirs = np.intersect1d(wait.steps, step.steps, return_indices=True)
    if not wait:
        raise NotChecked("waiting is seen with monitor.data(loader)")
    if len(common) < limits.clock_checks:
        raise NotChecked(f"needs {limits.clock_checks} monitored steps")
    # The first step of an epoch waits for the workers to start.
    waits, steps = wait.values[mine][2:][-32:], step.values[theirs][2:][-32:]
    part, length = float(np.median(waits / np.maximum(steps, 1e-9))), float(np.median(steps))
    overall = float(waits.sum() / max(steps.sum(), 1e-9))
    if min(part, 1.0) < limits.data_share and overall < 1.5 * limits.data_share:
        return None
    part = max(part, overall)
    saved = 1.0 / max(1.0 - part, 0.05)
    return finding(
        __name__,
        run,
        severity=WARNING if length > limits.data_step_s else INFO,
        sites=["data loading"],
        first_step=int(common[min(2, len(common) - 1)]),
        evidence=[
            evidence(
                f"{share(part)} of each step ({num(1e3 * length)} ms) is waiting for data, healthy "
                f"is below {share(limits.data_share)}",
                Key("clock", "data", "wall_s"),
                step=int(common[-1]),
                value=part,
                threshold=limits.data_share,
            ),
        ],
        explanation=f"The training spends {share(part)} of its time waiting for the next batch.",
        causes=[
            cause("too few workers", "doubling num_workers halves the waiting", 0.6),
            cause(
                "slow storage or expensive transforms",
                "the waiting stays with more workers; one sample takes long",
                0.5,
            ),
        ],
        fix="raise num_workers (twice as many), set persistent_workers=True, pin_memory=True and "
        f"prefetch_factor=4: up to {num(saved)} times as fast",
        change={"num_workers": {"factor": 2}, "prefetch_factor": {"to": 4}},
        confidence=0.85,
    )
