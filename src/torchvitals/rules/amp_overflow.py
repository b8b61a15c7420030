"""The GradScaler skips many steps, or its scale collapses.

**Shows as** steps that change nothing, and a loss scale that keeps falling.

**Why it hurts**: a skipped step is a wasted batch; a collapsed scale lets small gradients vanish in
fp16.

**Judged by** the share of skipped steps lately (more than 5 %), or a scale below 1.

**Known false alarms**: the first steps, in which the scaler looks for its scale, are not counted.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "AMP overflow"
NEEDS = ("amp/skipped",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Skipped steps after the scaler has settled, or a scale near nothing."""
    skipped, scale = run.line("amp", "scaler", "skipped"), run.line("amp", "scaler", "scale")
    if len(skipped) < limits.amp_checks:
        raise NotChecked(f"needs {limits.amp_checks} monitored steps with a GradScaler")
    settled = skipped.values[limits.amp_checks // 2 :][-100:]
    part = float(np.mean(settled > 0))
    low = float(scale.values[-1]) if scale else float("nan")
    if not (part > limits.amp_skipped or low < limits.amp_scale):
        return None
    late = skipped.steps[limits.amp_checks // 2 :]
    bad = late[skipped.values[limits.amp_checks // 2 :] > 0]
    return finding(
        __name__,
        run,
        severity=ERROR if part > 0.5 or low < limits.amp_scale else WARNING,
        sites=[ROOT],
        first_step=int(bad[0]) if len(bad) else int(scale.steps[-1]),
        evidence=[
            evidence(
                f"{share(part)} of the steps were skipped, healthy is below "
                f"{share(limits.amp_skipped)}",
                Key("amp", "scaler", "skipped"),
                step=run.last_step,
                value=part,
                threshold=limits.amp_skipped,
            ),
            evidence(
                f"the loss scale is {num(low)}",
                Key("amp", "scaler", "scale"),
                step=run.last_step,
                value=low,
                threshold=limits.amp_scale,
            ),
        ],
        explanation=(
            f"fp16 gradients overflow in {share(part)} of the steps: the scaler drops these steps "
            f"and lowers its scale, to {num(low)} now."
        ),
        causes=[
            cause(
                "an operation whose values exceed fp16's 65504",
                "the activations' max of one layer is near 65504; the same run in bf16 has no "
                "skips",
                0.6,
            ),
            cause(
                "gradients are NaN for another reason (log(0), a bad batch)",
                "the same step in float32 gives NaN as well",
                0.4,
            ),
        ],
        fix="use bfloat16: torch.autocast(device, dtype=torch.bfloat16), without a GradScaler",
        change={"amp_dtype": {"from": "float16", "to": "bfloat16"}},
        confidence=0.85,
    )
