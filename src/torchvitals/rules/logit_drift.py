"""The output logits drift away.

**Shows as** |log Z| of the softmax growing with the steps.

**Why it hurts**: the softmax does not care about a common shift, low precision does; divergence
late in long runs begins like this.

**Judged by** the mean of log Z: beyond 50 and three times what it was. Information below 100.
Source: Chowdhery et al. 2022 (PaLM's z-loss).

**Known false alarms**: a classifier that becomes sure has a log Z that grows for a while.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "output logit drift"
NEEDS = ("criterion/logz_mean",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """A large and growing log Z."""
    for fn in run.sites("criterion", "logz_mean"):
        line = run.line("criterion", fn, "logz_mean").finite
        if len(line) < 8:
            raise NotChecked("needs eight monitored steps")
        now, start = (
            float(np.median(np.abs(line.last(8)))),
            float(np.median(np.abs(line.values[:4]))),
        )
        if now > limits.logz and now > 3 * start:
            return finding(
                __name__,
                run,
                severity=WARNING if now > 2 * limits.logz else INFO,
                sites=[ROOT],
                first_step=int(line.steps[int(np.argmax(np.abs(line.values) > limits.logz))]),
                evidence=[
                    evidence(
                        f"|log Z| is {num(now)}, {num(start)} at first; healthy is below "
                        f"{num(limits.logz)}",
                        Key("criterion", fn, "logz_mean"),
                        step=int(line.steps[-1]),
                        value=now,
                        threshold=limits.logz,
                    ),
                ],
                explanation="The logits drift: only their differences matter, their size grows.",
                causes=[
                    cause(
                        "nothing holds the common level of the logits",
                        "a z-loss of 1e-4·(log Z)² keeps it near 0",
                        0.6,
                    ),
                    cause("the head's weights grow", "weight decay on the head stops it", 0.4),
                ],
                fix="add a z-loss: loss + 1e-4 * torch.logsumexp(logits, -1).pow(2).mean()",
                change={"z_loss": {"from": 0.0, "to": 1e-4}},
                confidence=0.5,
            )
    return None
