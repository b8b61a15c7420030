"""A tanh or sigmoid layer sits at its ends.

**Shows as** outputs at ±1 (tanh) or 0 and 1 (sigmoid) for most inputs.

**Why it hurts**: at the ends the slope is zero: no gradient goes through.

**Judged by** the share of outputs within 2.5 % of an end: more than half of a layer, over the
last monitored steps. Source: AutoTrainer.

**Known false alarms**: the last activation of a model (a classifier's sigmoid) may saturate when
it is sure; it is exempt.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import places, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "saturation"
NEEDS = ("activation/rms",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Layers at their ends."""
    table = run.table("activation", "saturated_frac")
    if not table:
        raise NotChecked("no Tanh or Sigmoid modules were seen; torch.tanh() is not a module")
    order = run.activation_order()
    last = order[-1] if order else ""
    found: dict[str, tuple[float, int]] = {}
    for site in table.sites:
        line = table.line(site)
        if site == last or len(line) < limits.saturation_checks:
            continue
        now = float(np.median(line.last(8)))
        if now > limits.saturation_share:
            found[site] = (
                now,
                int(line.steps[int(np.argmax(line.values > limits.saturation_share))]),
            )
    if not found:
        return None
    sites = sorted(found, key=run.model.depth)
    first = min(since for _, since in found.values())
    from_start = first <= run.first_step + 2 * run.every
    stuck = run.loss.falls and run.loss.fallen < 0.3
    return finding(
        __name__,
        run,
        severity=ERROR if stuck and max(v for v, _ in found.values()) > 0.8 else WARNING,
        sites=sites,
        first_step=first,
        evidence=[
            evidence(
                f"{share(found[site][0])} of the outputs of {site} are at the ends, healthy is "
                "below "
                f"{share(limits.saturation_share)}",
                Key("activation", site, "saturated_frac"),
                step=run.last_step,
                value=found[site][0],
                threshold=limits.saturation_share,
            )
            for site in sites[:3]
        ],
        explanation=(
            f"{places(sites)} put out little but their extreme values"
            + (" from the first step on" if from_start else f" since step {first}")
            + ": their slope is zero there, and hardly any gradient passes."
        ),
        causes=[
            cause(
                "inputs that are not normalised",
                "the input's std is far above 1",
                0.6 if from_start else 0.2,
            ),
            cause(
                "weights initialised too large",
                "the weights' std is far above 1/√fan_in",
                0.5 if from_start else 0.2,
            ),
            cause(
                "weights that grew (learning rate too high)",
                "saturation came later, with growing weight norms",
                0.1 if from_start else 0.7,
            ),
        ],
        fix=(
            "normalise the inputs to mean 0 and std 1, initialise with Xavier, or put a "
            f"normalisation layer before {sites[0]}"
        ),
        change={"normalise_input": True, "init": {sites[0]: "xavier"}},
        confidence=0.8,
    )
