"""The loss is summed over the batch instead of averaged.

**Shows as** a loss and gradients as many times larger as the batch has samples.

**Why it hurts**: the learning rate now depends on the batch size.

**Judged by** `reduction="sum"` of torch's loss functions with more than one sample, together with
a first loss beyond what guessing costs, or gradient norms above 100.

**Known false alarms**: a sum that is divided by the batch afterwards (a VAE's way) has a first
loss of the usual size and is silent where that can be told.
"""

from __future__ import annotations

from math import log

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "summed loss"
NEEDS = ("criterion/sum_reduction",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """A sum whose size shows."""
    for fn in run.sites("criterion", "sum_reduction"):
        summed = run.line("criterion", fn, "sum_reduction")
        batch = run.line("criterion", fn, "batch_size")
        size = float(np.median(batch.values)) if batch else float("nan")
        if not summed or not (summed.values > 0).all() or size <= 1:
            continue
        classes = run.line("criterion", fn, "num_classes")
        guess = log(float(classes.values[-1])) if classes and classes.values[-1] >= 2 else None
        norms = run.root("gradient", "norm").finite
        norm = float(np.median(norms.values[:4])) if norms else float("nan")
        start = run.loss.start if run.loss else float("nan")
        if guess is not None and start < 0.2 * size * guess:
            continue  # divided afterwards
        if guess is None and not norm > limits.summed_norm:
            continue
        if np.isnan(size):
            size = float("nan")
        lr = run.lr_peak
        return finding(
            __name__,
            run,
            severity=WARNING if not norm > limits.exploding_norm_error else ERROR,
            sites=[ROOT],
            first_step=run.first_step,
            evidence=[
                evidence(
                    f'{fn} is called with reduction="sum" on {num(size)} samples',
                    Key("criterion", fn, "sum_reduction"),
                    step=int(summed.steps[-1]),
                    value=1,
                    threshold=0,
                ),
                evidence(
                    f"first loss {num(start)}"
                    + (f", guessing costs {num(guess)} a sample" if guess else "")
                    + f"; gradient norm {num(norm)}",
                    Key("gradient", ROOT, "norm"),
                    value=norm,
                ),
            ],
            explanation=(
                f"The loss adds up {num(size)} samples: it and its gradients are {num(size)} times "
                "those of the mean, and change with the batch size."
            ),
            causes=[
                cause('reduction="sum"', "the loss doubles with the batch", 0.9),
                cause(
                    "it is meant so, with a learning rate to match",
                    "lr × batch size is in the usual range",
                    0.3,
                ),
            ],
            fix='use reduction="mean"'
            + (f", or lower lr from {num(lr)} to {num(lr / size)}" if size > 1 else ""),
            change={"reduction": {"from": "sum", "to": "mean"}},
            confidence=0.85,
        )
    return None
