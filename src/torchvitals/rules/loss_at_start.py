"""The first loss is not what guessing costs.

**Shows as** a first loss far above ln C for C classes.

**Why it hurts**: the model begins sure and wrong; the first steps are spent on undoing that.

**Judged by** the first loss against ln C (cross entropy) or ln 2 (binary): more than twice it
plus 1. Source: Karpathy's recipe.

**Known false alarms**: class weights, label smoothing and auxiliary losses move it; a pretrained
model begins below, which is fine.
"""

from __future__ import annotations

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.plateau import trivial_loss
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "loss at the start"
NEEDS = ("loss",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """L₀ ≫ ln C."""
    guess = trivial_loss(run)
    if guess is None:
        raise NotChecked("the number of classes is not known: no cross entropy was seen")
    line = run.loss.finite
    if not line or int(line.steps[0]) > run.first_step + 2 or not run.loss.falls:
        return None
    start = float(line.values[0])
    if start < limits.start_factor * guess + 1.0:
        return None
    return finding(
        __name__,
        run,
        severity=WARNING if start > 2 * (limits.start_factor * guess + 1) else INFO,
        sites=[ROOT],
        first_step=int(line.steps[0]),
        last_step=int(line.steps[0]),
        evidence=[
            evidence(
                f"first loss {num(start)}, guessing costs {num(guess)}",
                Key.scalar(run.loss.name),
                step=int(line.steps[0]),
                value=start,
                threshold=limits.start_factor * guess + 1,
            ),
        ],
        explanation=f"The first loss is {num(start)}; a model that knows nothing should have "
        f"{num(guess)}.",
        causes=[
            cause(
                "outputs too large at the start (initialisation, input scale)",
                "the std of the logits is far above 1 at the first step",
                0.6,
            ),
            cause("a loss that is summed, or weighted", "it scales with the batch size", 0.4),
        ],
        fix="make the first outputs small: initialise the head's weights with std 0.02 and bias 0",
        change={"init_std": {"head": 0.02}},
        confidence=0.6,
    )
