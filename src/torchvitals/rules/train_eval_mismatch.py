"""The evaluation ran in training mode (or the other way round).

**Shows as** validation results that are noisy and too bad, with dropout on and batch statistics
used.

**Why it hurts**: the numbers that decide are wrong, and batch norm learns from validation data.

**Judged by** the mode of the model while it was evaluated: training mode, with dropout or batch
norm in the model.

**Known false alarms**: Monte-Carlo dropout on purpose.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import places
from torchvitals.rules.thresholds import Thresholds

TITLE = "train/eval mismatch"
NEEDS = ("eval/train_mode",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Evaluations with model.training on."""
    layers = [n for n, kind in run.model.types.items() if "Dropout" in kind or "BatchNorm" in kind]
    for split in run.sites("eval", "train_mode"):
        line = run.line("eval", split, "train_mode")
        wrong = line.values > 0
        if not line or not layers or wrong.mean() <= limits.mode_share:
            continue
        return finding(
            __name__,
            run,
            severity=ERROR if any("BatchNorm" in run.model.types[n] for n in layers) else WARNING,
            sites=layers[:20],
            first_step=int(line.steps[int(np.argmax(wrong))]),
            evidence=[
                evidence(
                    f"{int(wrong.sum())} of {len(line)} evaluations of {split} ran in training "
                    "mode, healthy is 0",
                    Key("eval", split, "train_mode"),
                    step=int(line.steps[-1]),
                    value=1,
                    threshold=0,
                ),
                evidence(f"{len(layers)} layers behave differently: {places(layers)}"),
            ],
            explanation=(
                f"The model was evaluated on {split} without model.eval(): dropout is active and "
                "batch norm uses, and learns from, the validation batches."
            ),
            causes=[
                cause(
                    "model.eval() is not called before the evaluation",
                    "model.training is True inside it",
                    0.9,
                ),
                cause(
                    "model.train() is called inside the evaluation, or a submodule stays in "
                    "training mode",
                    "[m for m in model.modules() if m.training] is not empty",
                    0.2,
                ),
            ],
            fix="call model.eval() before the evaluation and model.train() after it",
            change={"eval_mode": {"from": False, "to": True}},
            confidence=0.93,
        )
    return None
