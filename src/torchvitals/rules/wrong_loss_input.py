"""The loss gets something else than it expects.

**Shows as** a loss that falls slowly and ends too high: probabilities where logits belong, class
numbers where a regression target belongs, shapes that are broadcast.

**Why it hurts**: softmax of a softmax hides the difference between right and wrong; a mean
squared error on class numbers learns an order that does not exist.

**Judged by** cross entropy's input: rows that lie in [0, 1] and sum to 1, at nearly all monitored
steps; mse and l1: shapes that differ, or targets that are whole numbers from 0 on with more than
two values. Source: UMLAUT.

**Known false alarms**: regression on counts is a warning, not an error.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "wrong loss input"
NEEDS = ()
CHEAP = True


REGRESSIONS = ("mse_loss", "l1_loss", "smooth_l1_loss")


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Double softmax, broadcasting, class numbers."""
    if not run.has("criterion"):
        raise NotChecked("no loss function of torch.nn.functional was seen")
    return _double_softmax(run, limits) or _broadcast(run) or _class_numbers(run, limits)


def _double_softmax(run: Run, limits: Thresholds) -> Finding | None:
    line = run.line("criterion", "cross_entropy", "probability_frac").finite
    if len(line) < limits.wiring_checks or float(np.median(line.values)) < limits.softmax_share:
        return None
    value = float(np.median(line.values))
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[ROOT],
        first_step=int(line.steps[0]),
        evidence=[
            evidence(
                f"{share(value)} of the rows given to cross_entropy lie in [0, 1] and sum to 1: "
                "probabilities, not logits",
                Key("criterion", "cross_entropy", "probability_frac"),
                step=int(line.steps[-1]),
                value=value,
                threshold=limits.softmax_share,
            ),
        ],
        explanation=(
            "cross_entropy applies a softmax itself, and gets the output of one: softmax of "
            "softmax. "
            "The loss can't get near zero, and gradients are small."
        ),
        causes=[
            cause("the model ends in a softmax", "its outputs sum to 1", 0.9),
            cause(
                "probabilities are passed on purpose", "then nll_loss(torch.log(p)) is meant", 0.2
            ),
        ],
        fix="remove the softmax at the end of the model: cross_entropy takes logits",
        change={"remove_softmax": True},
        confidence=0.97,
    )


def _broadcast(run: Run) -> Finding | None:
    for fn in REGRESSIONS:
        line = run.line("criterion", fn, "broadcast").finite
        if not line or not (line.values > 0).all():
            continue
        return finding(
            __name__,
            run,
            severity=ERROR,
            sites=[ROOT],
            first_step=int(line.steps[0]),
            evidence=[
                evidence(
                    f"input and target of {fn} have different shapes and are broadcast",
                    Key("criterion", fn, "broadcast"),
                    step=int(line.steps[-1]),
                    value=1,
                    threshold=0,
                ),
            ],
            explanation=(
                f"{fn} compares every prediction with every target (shapes like (N, 1) and (N,)): "
                "the model learns the mean of the targets."
            ),
            causes=[
                cause("a missing squeeze(-1) or unsqueeze(-1)", "print both shapes", 0.9),
                cause(
                    "a wrong output size of the model",
                    "its last dimension is not that of the target",
                    0.2,
                ),
            ],
            fix="give both the same shape: prediction.squeeze(-1), or target.unsqueeze(-1)",
            change={"squeeze": True},
            confidence=0.93,
        )
    return None


def _class_numbers(run: Run, limits: Thresholds) -> Finding | None:
    for fn in REGRESSIONS:
        whole = run.line("criterion", fn, "target_integer_frac").finite
        low, high = (
            run.line("criterion", fn, stat).finite for stat in ("target_min", "target_max")
        )
        if len(whole) < limits.wiring_checks or not low or not high:
            continue
        top, bottom = float(high.values.max()), float(low.values.min())
        if (whole.values < 0.999).any() or bottom < 0 or not 2 <= top <= limits.class_numbers:
            continue
        classes = int(top) + 1
        return finding(
            __name__,
            run,
            severity=WARNING,
            sites=[ROOT],
            first_step=int(whole.steps[0]),
            evidence=[
                evidence(
                    f"all targets of {fn} are whole numbers from {num(bottom)} to {num(top)}",
                    Key("criterion", fn, "target_integer_frac"),
                    step=int(whole.steps[-1]),
                    value=1,
                    threshold=1,
                ),
            ],
            explanation=(
                f"The targets look like {classes} class numbers, and {fn} treats them as amounts: "
                "class 9 is not nine times class 1."
            ),
            causes=[
                cause(
                    "a classification trained with a regression loss",
                    f"the targets are labels of {classes} classes",
                    0.8,
                ),
                cause(
                    "the targets are counts or grades",
                    "their order and distance mean something",
                    0.3,
                ),
            ],
            fix=f"use cross_entropy with {classes} outputs and integer labels",
            change={"loss": {"from": fn, "to": "cross_entropy"}, "num_outputs": classes},
            confidence=0.8,
        )
    return None
