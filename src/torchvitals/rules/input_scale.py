"""Inputs are far from mean 0 and std 1.

**Shows as** inputs of 0 … 255, prices in cents, raw timestamps.

**Why it hurts**: the first layer sees a scale its initialisation was not made for; tanh and
sigmoid saturate, gradients explode, steps fit no layer.

**Judged by** mean and std of the float tensors the model is called with: |mean| or std above 10,
in three monitored steps. Source: UMLAUT.

**Known false alarms**: models that normalise first (batch or layer norm as the first layer) do
not mind, and it is information.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, WARNING, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "input scale"
NEEDS = ("input/std",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Means or spreads off by more than tenfold."""
    for site in run.sites("input", "std"):
        std, mean = run.line("input", site, "std").finite, run.line("input", site, "mean").finite
        if len(std) < limits.wiring_checks or not mean:
            continue
        spread, middle = float(np.median(std.values)), float(np.median(mean.values))
        if max(spread, abs(middle)) < limits.input_scale:
            continue
        order = run.activation_order()
        guarded = bool(order) and "Norm" in run.model.type_of(order[0])
        shift, scale = float(f"{middle:.2g}"), float(f"{max(spread, 1e-6):.2g}")
        return finding(
            __name__,
            run,
            severity=INFO if guarded else WARNING,
            sites=[f"input {site}"],
            first_step=int(std.steps[0]),
            evidence=[
                evidence(
                    f"the input {site} has mean {num(middle)} and std {num(spread)}, healthy is "
                    f"about 0 and 1, off below {num(limits.input_scale)}",
                    Key("input", site, "std"),
                    step=int(std.steps[-1]),
                    value=spread,
                    threshold=limits.input_scale,
                ),
            ],
            explanation=(
                f"The inputs have mean {num(middle)} and std {num(spread)}: layers are "
                "initialised for "
                "inputs around 0 with std 1."
            ),
            causes=[
                cause(
                    "the inputs are not normalised (pixels 0 … 255?)",
                    "their min and max are those of the raw data",
                    0.85,
                ),
                cause(
                    "the normalisation uses wrong statistics",
                    "mean and std of the training set differ from those in the transform",
                    0.2,
                ),
            ],
            fix=f"normalise the input: (x - {num(shift)}) / {num(scale)}",
            change={"normalise_input": {"mean": shift, "std": scale}},
            confidence=0.5 if guarded else 0.85,
        )
    return None
