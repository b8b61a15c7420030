"""The batch is far smaller than the gradient noise asks for.

**Shows as** a gradient noise scale many times the batch size.

**Why it hurts**: most of each step is noise; the same samples in larger batches with a larger
rate are about as good and faster.

**Judged by** the noise scale estimated from micro-batches: more than ten times the batch, over
the last eight looks. Source: McCandlish et al. 2018.

**Known false alarms**: late in training the noise scale always grows; it is information unless
the loss swings.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "batch too small"
NEEDS = ("noise/noise_scale",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """B < 0.1 B_simple."""
    scale = run.line("noise", "run", "noise_scale").finite
    batch = run.line("noise", "run", "batch_size").finite
    if len(scale) < limits.noise_checks or not batch:
        raise NotChecked(f"needs {limits.noise_checks} monitored steps with micro-batches")
    wanted, size = float(np.median(scale.last(8))), float(np.median(batch.last(8)))
    if not wanted > 0 or size > limits.noise_share * wanted:
        return None
    loss = run.loss
    swings = loss.falls and loss.noise > 0.3 * loss.now
    target = 2 ** round(float(np.log2(max(0.3 * wanted, 2 * size))))
    return finding(
        __name__,
        run,
        severity=WARNING if swings else INFO,
        sites=[ROOT],
        first_step=int(scale.steps[-8]),
        evidence=[
            evidence(
                f"the noise scale is {num(wanted)} samples, the batch {num(size)}",
                Key("noise", "run", "noise_scale"),
                step=int(scale.steps[-1]),
                value=size / wanted,
                threshold=limits.noise_share,
            ),
        ],
        explanation=f"Of each step only about {share(size / (size + wanted))} is signal.",
        causes=[
            cause(
                "the batch is small for this task", "the noise scale is steady over the run", 0.6
            ),
            cause(
                "late in training: little is left to learn", "the noise scale rose steadily", 0.4
            ),
        ],
        fix=f"raise the batch from {num(size)} to {num(target)} samples (accumulate gradients)",
        change=changed("batch_size", size, target),
        confidence=0.55,
    )
