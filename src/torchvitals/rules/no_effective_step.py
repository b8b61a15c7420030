"""Gradients are there, but the weights do not change.

**Shows as** a loss that only moves with the batches; every update is exactly zero.

**Why it hurts**: nothing is learned at all.

**Judged by** the wiring, from the second monitored step on: the optimizer holds none of the
model's parameters; or no weight changed although gradients and learning rate are above zero; or
steps ran without any gradient.

**Known false alarms**: a learning rate of 0, or annealed to nothing, is not counted
(`schedule_fault`), nor are steps that a GradScaler skipped.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import share
from torchvitals.rules.thresholds import Thresholds

TITLE = "no effective step"
NEEDS = ("gradient/norm",)
CHEAP = True


ANNEALED = 1e-4
"""Steps at less than this share of the highest rate are not counted."""

MOST = 0.9
"""Share of idle steps above which a falling loss is no comfort."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Steps that change nothing."""
    if len(run.monitored) < limits.wiring_checks:
        raise NotChecked(f"needs {limits.wiring_checks} monitored steps")
    if run.info.groups and run.model.trainable:
        held = [p for p in run.model.trainable if p in run.model.group_of]
        if not held and not _moves(run):
            return _other_model(run)
    return _still(run, limits) or _idle(run, limits)


def _moves(run: Run) -> bool:
    change = run.root("update", "norm")
    return bool((change.values > 0).any())


def _other_model(run: Run) -> Finding:
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[ROOT],
        first_step=run.first_step,
        evidence=[
            evidence(
                f"none of the {len(run.model.trainable)} trainable parameters is in the optimizer",
                Key("gradient", ROOT, "norm"),
                step=int(run.monitored[-1]),
            )
        ],
        explanation=(
            "The optimizer holds parameters of another model: this one gets gradients, and nobody "
            "steps on them."
        ),
        causes=[
            cause(
                "the optimizer was made before the model was replaced (copied, moved, wrapped, "
                "reloaded)",
                "{id(p) for p in model.parameters()} and the optimizer's ids have nothing in "
                "common",
                0.85,
            ),
            cause("it was made for another model", "the shapes of its parameters differ", 0.15),
        ],
        fix="make the optimizer after the model is final: torch.optim.…(model.parameters(), lr=…)",
        change={"rebuild_optimizer": True},
        confidence=0.97,
    )


def _still(run: Run, limits: Thresholds) -> Finding | None:
    change, slope = run.root("update", "norm"), run.root("gradient", "norm")
    steps, mine, theirs = np.intersect1d(change.steps, slope.steps, return_indices=True)
    if len(steps) < limits.wiring_checks:
        return None
    rates = np.array([run.lr_at(int(step)) for step in steps[-64:]])
    skipped = run.line("amp", "scaler", "skipped")
    idle = set(skipped.steps[skipped.values > 0].tolist())
    # A rate that was annealed to nothing is the schedule's matter.
    counted = ~(rates <= ANNEALED * run.lr_peak)
    counted &= np.array([int(step) not in idle for step in steps[-64:]])
    moved = change.values[mine][-64:]
    pushed = slope.values[theirs][-64:]
    dead = counted & (moved == 0) & (pushed > 0)
    if dead.sum() < limits.wiring_checks or not dead[counted][-limits.wiring_checks :].all():
        return None
    first = int(steps[-64:][dead][0])
    low = {"bfloat16", "float16"} & {run.model.dtype(p) for p in run.model.weights}
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[ROOT],
        first_step=first,
        evidence=[
            evidence(
                f"‖Δw‖ = 0 at {int(dead.sum())} monitored steps with ‖g‖ = {pushed[dead][-1]:.3g}",
                Key("update", ROOT, "norm"),
                step=int(steps[-1]),
                value=0,
                threshold=0,
            )
        ],
        explanation="Gradients are there and the learning rate is not 0, but no weight changes.",
        causes=[
            cause(
                "the weights are copies: the optimizer steps on others than those the loss uses",
                "the optimizer's tensors and the model's differ in data_ptr()",
                0.5,
            ),
            cause(
                "the change is smaller than a weight's last bit",
                f"the dtype is {', '.join(sorted(low)) or 'float32'}; lr × 1000 moves them",
                0.8 if low else 0.4,
            ),
        ],
        fix="make the optimizer from this model's parameters, after the model is final",
        change={"rebuild_optimizer": True},
        confidence=0.9,
    )


def _idle(run: Run, limits: Thresholds) -> Finding | None:
    """Steps without a backward pass, and without a gradient to step on."""
    passes, norms = run.root("gradient", "num_backward"), run.root("gradient", "norm")
    if len(passes) < limits.wiring_checks:
        return None
    idle = np.setdiff1d(passes.steps[passes.values == 0], norms.steps[norms.values > 0])
    part = len(idle) / len(passes)
    if len(idle) < limits.wiring_checks - 1 or part < limits.idle_share:
        return None
    # Before the first backward pass of all there is no count of them.
    unseen = run.monitored[run.monitored < passes.steps[0]]
    first = int(unseen[0]) if len(unseen) else int(idle[0])
    learns = part < MOST and run.loss.falls and run.loss.fallen > 0.5
    return finding(
        __name__,
        run,
        severity=WARNING if learns else ERROR,
        sites=[ROOT],
        first_step=first,
        evidence=[
            evidence(
                f"{share(part)} of the monitored steps had no backward pass and no gradient",
                Key("gradient", ROOT, "num_backward"),
                step=int(idle[-1]),
                value=0,
                threshold=1,
            )
        ],
        explanation=(
            "optimizer.step() is called without a backward() before it: these steps do nothing "
            "(or follow momentum and weight decay alone)."
        ),
        causes=[
            cause(
                "backward() is called in some iterations only, step() in all",
                "count both calls over ten iterations",
                0.8,
            ),
            cause(
                "zero_grad() stands between backward() and step()",
                "p.grad is None just before step()",
                0.4,
            ),
        ],
        fix="call loss.backward() before every optimizer.step(), zero_grad() before backward()",
        change={"backward_every_step": {"from": False, "to": True}},
        confidence=0.88,
    )
