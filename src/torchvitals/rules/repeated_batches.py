"""The same samples come again within an epoch.

**Shows as** batches whose samples were seen before in this epoch.

**Why it hurts**: workers with the same seed hand out the same random crops or samples; the data
are fewer than they seem.

**Judged by** hashes of the samples: more than 10 % already seen in the same epoch, in every third
monitored step or more. Without epochs, more than half within the first steps.

**Known false alarms**: sampling with replacement; data sets that are small and passed over
without telling epochs (`monitor.data(loader)` tells them).
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import share
from torchvitals.rules.thresholds import Thresholds

TITLE = "repeated batches"
NEEDS = ("input/repeat_frac",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Samples seen twice too early."""
    line = run.line("input", "batch", "repeat_frac").finite.after(run.first_step)
    if len(line) < 3:
        raise NotChecked("needs four monitored steps")
    told = bool(run.events("epoch"))
    values = line.values if told else line.values[: limits.repeat_early]
    limit = limits.repeat_share if told else limits.repeat_share_blind
    # Some batches of an epoch must be its first of their kind: not all can be repeats.
    value, often = float(np.mean(values)), float(np.mean(values > limit))
    if value < limit or often < limits.repeat_often or np.sum(values > limit) < 3:
        return None
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=["input batch"],
        first_step=int(line.steps[int(np.argmax(line.values > limit))]),
        evidence=[
            evidence(
                f"{share(value)} of the samples were already seen "
                + ("in the same epoch" if told else "in the steps before")
                + f", healthy is below {share(limit)}",
                Key("input", "batch", "repeat_frac"),
                step=int(line.steps[-1]),
                value=value,
                threshold=limit,
            ),
        ],
        explanation=f"{share(value)} of each batch are samples that were there before.",
        causes=[
            cause(
                "workers draw with the same random seed",
                "num_workers=0 has no repeats; numpy's generator is not seeded per worker",
                0.7,
            ),
            cause(
                "the sampler draws with replacement, or the data hold duplicates",
                "the indices of one epoch are not unique",
                0.4,
            ),
        ],
        fix="seed each worker by its own number: worker_init_fn=lambda k: np.random.seed(base + k)",
        change={"worker_init_fn": True},
        confidence=0.8,
    )
