"""One rank is slower than the others.

**Shows as** one rank's step time above the median of all, step after step.

**Why it hurts**: all ranks wait for the slowest.

**Judged by** the step times of the ranks: more than 10 % above the median in most of the last 16
looks.

**Known false alarms**: ranks with longer sequences; a single slow step.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "straggler"
NEEDS = ("rank/step_s",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """A rank that lags behind, persistently."""
    table = run.table("rank", "step_s")
    if len(table.sites) < 2:
        return None
    if len(table.steps) < limits.straggler_checks:
        raise NotChecked(f"needs {limits.straggler_checks} looks")
    values = table.values[2:][-16:]
    others = np.nanmedian(values, axis=1, keepdims=True)
    slow = values / np.maximum(others, 1e-9)
    often = np.mean(slow > 1 + limits.straggler_share, axis=0)
    at = int(np.argmax(often))
    if often[at] < 0.75:
        return None
    factor, site = float(np.median(slow[:, at])), table.sites[at]
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=[f"rank {site}"],
        first_step=int(table.steps[2:][-16:][0]),
        evidence=[
            evidence(
                f"rank {site} takes {num(factor)} times as long as the median rank",
                Key("rank", site, "step_s"),
                step=int(table.steps[-1]),
                value=factor - 1,
                threshold=limits.straggler_share,
            ),
        ],
        explanation=f"All ranks wait for rank {site}, in {share(float(often[at]))} of the looks.",
        causes=[
            cause(
                "its host or device is slower (heat, another process)",
                "the same host is slow with other work",
                0.6,
            ),
            cause("its data take longer", "rank/<r>/data_s of this rank is larger", 0.5),
        ],
        fix=f"look at the host of rank {site}: clocks, temperature, other processes; or even "
        "out the data",
        change={"check_rank": site},
        confidence=0.75,
    )
