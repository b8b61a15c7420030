"""The model was fed NaN or Inf.

**Shows as** a NaN loss at single steps, or for good if the optimizer stepped on it.

**Why it hurts**: no layer can repair its input; one such batch poisons every weight.

**Judged by** the non-finite elements of the float tensors the model is called with: any.

**Known false alarms**: models that take NaN as "missing" and mask it themselves.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "NaN or Inf in the input"
NEEDS = ("input/num_nan",)
CHEAP = True


def check(run: Run, _limits: Thresholds) -> Finding | None:
    """Any element that is not finite."""
    first: tuple[int, str, str, float] | None = None
    bad_steps: set[int] = set()
    for stat in ("num_nan", "num_inf"):
        table = run.table("input", stat)
        if not table:
            continue
        bad = table.values > 0
        for row, column in zip(*np.nonzero(bad), strict=True):
            step = int(table.steps[row])
            bad_steps.add(step)
            if first is None or step < first[0]:
                first = step, table.sites[column], stat, float(table.values[row, column])
    if first is None:
        return None
    step, site, stat, count = first
    word = "NaN" if stat == "num_nan" else "Inf"
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[f"input {site}"],
        first_step=step,
        last_step=max(bad_steps),
        evidence=[
            evidence(
                f"step {step}: {num(count)} elements of the input {site} are {word}, healthy is 0",
                Key("input", site, stat),
                step=step,
                value=count,
                threshold=0,
            ),
            evidence(f"{len(bad_steps)} of the monitored steps had such a batch"),
        ],
        explanation=(
            f"The batch of step {step} holds {num(count)} {word} values. Everything computed from "
            "it is NaN, and so are the weights if the optimizer stepped on it."
        ),
        causes=[
            cause("a broken sample in the data", "torch.isfinite over the dataset finds it", 0.7),
            cause(
                "the preprocessing divides by zero (a constant feature, an empty image)",
                "the raw sample is finite, the transformed one is not",
                0.3,
            ),
        ],
        fix=(
            f"drop or repair the sample: if not torch.isfinite(x).all(): continue; the batch of "
            f"step {step} holds it"
        ),
        change={"skip_non_finite_input": {"from": False, "to": True}},
        confidence=0.97,
    )
