"""The output does not depend on the input.

**Shows as** the same prediction for every sample, and a loss at the level of guessing.

**Why it hurts**: the model can only learn how often each answer occurs.

**Judged by** the input itself (constant or all zero), or by the outputs' spread over the batch:
below 0.1 % of their overall spread in three monitored steps while the loss does not fall.

**Known false alarms**: the first steps of a deep network; a model that has been told constant
targets.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Evidence, Finding, Key
from torchvitals.rules.rule import ERROR, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "input ignored"
NEEDS = ()
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """A constant input, or a constant output."""
    if not run.has("input", "std") and not run.has("output", "batch_std_frac"):
        raise NotChecked("inputs and outputs of the model were not measured")
    return _constant_input(run, limits) or _constant_output(run, limits)


def _constant_input(run: Run, limits: Thresholds) -> Finding | None:
    for site in run.sites("input", "std"):
        line = run.line("input", site, "std").finite
        zeros = run.line("input", site, "zero_frac").finite
        if len(line) < limits.wiring_checks:
            continue
        flat = (line.last(8) <= 1e-12).all() or (
            len(zeros) >= limits.wiring_checks and (zeros.last(8) >= limits.input_zero).all()
        )
        if flat:
            value = float(line.values[-1])
            return _told(
                run,
                f"input {site}",
                int(line.steps[0]),
                0.95,
                evidence(
                    f"the input {site} has std {num(value)}: every sample is the same",
                    Key("input", site, "std"),
                    step=int(line.steps[-1]),
                    value=value,
                    threshold=0,
                ),
            )
    return None


def _constant_output(run: Run, limits: Thresholds) -> Finding | None:
    loss = run.loss
    for site in run.sites("output", "batch_std_frac"):
        line = run.line("output", site, "batch_std_frac").finite
        if len(line) < 3 or (loss.falls and loss.fallen > 0.3):
            continue
        now = float(np.median(line.last(4)))
        if now < limits.output_spread and (line.last(3) < 3 * limits.output_spread).all():
            begin = int(line.steps[int(np.argmax(line.values < 3 * limits.output_spread))])
            return _told(
                run,
                site,
                begin,
                0.8,
                evidence(
                    f"outputs of one batch differ by {num(100 * now)} % of their overall "
                    "spread, healthy "
                    f"is above {num(100 * limits.output_spread)} %",
                    Key("output", site, "batch_std_frac"),
                    step=int(line.steps[-1]),
                    value=now,
                    threshold=limits.output_spread,
                ),
            )
    return None


def _told(run: Run, site: str, first: int, sure: float, what: Evidence) -> Finding:
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[site],
        first_step=first,
        evidence=[what],
        explanation="The model's output is the same whatever it is given: it can't learn from "
        "its input.",
        causes=[
            cause(
                "the data path hands over a constant (zeros, one sample, an empty mask)",
                "print(x.std(0)) right before the model is 0",
                0.8 if sure > 0.9 else 0.4,
            ),
            cause(
                "units are dead or saturated, so that nothing gets through",
                "the activations of some layer are constant over the batch",
                0.2 if sure > 0.9 else 0.5,
            ),
            cause(
                "inputs and labels do not belong together, and the model has settled for the mean",
                "it can't overfit ten samples",
                0.3,
            ),
        ],
        fix="look at the batch right before model(x): shapes, min, max, std over samples; "
        "repair the "
        "data path",
        change={"check": "input"},
        confidence=sure,
    )
