"""A parameter that wants a gradient never gets one, or no optimizer holds it.

**Shows as** a part of the model that stays as it was initialised; the loss may still fall, less
far.

**Why it hurts**: a detached or forgotten block is dead weight, and nothing raises an error.

**Judged by** the wiring, from the second monitored step on: requires_grad, but `.grad` is None at
every monitored step, or it is in no parameter group and never changes.

**Known false alarms**: a module that is not called at all (an unused head, an idle expert) is
told as information; when most of the model is in no group, it may be meant so (a warning).
Parameters with requires_grad=False are never counted.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import places
from torchvitals.rules.thresholds import Thresholds

TITLE = "parameter without gradient or optimizer"
NEEDS = ("gradient/norm",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Parameters that no gradient reaches, or no optimizer steps."""
    if len(run.monitored) < limits.wiring_checks:
        raise NotChecked(f"needs {limits.wiring_checks} monitored steps")
    trainable = run.model.trainable
    outside = _without_optimizer(run)
    if len(outside) >= len(trainable):
        return None  # the optimizer holds none at all: no_effective_step tells
    missing = _without_gradient(run)
    # Gradients that no optimizer takes up may be there without being measured.
    missing = [p for p in missing if p not in outside]
    called = set(run.activation_order())
    unused = [p for p in missing if called and not _called(run, p, called)]
    cut_off = [p for p in missing if p not in unused]
    if cut_off:
        return _cut_off(run, cut_off)
    if outside:
        return _outside(run, outside, few=len(outside) <= limits.orphan_share * len(trainable))
    if unused:
        return _unused(run, unused)
    return None


def _without_gradient(run: Run) -> list[str]:
    """Never any gradient, although others have one."""
    flags = run.table("gradient", "missing")
    if flags:
        always = np.nanmin(np.where(np.isnan(flags.values), 0.0, flags.values), axis=0) >= 1
        return [site for site, alone in zip(flags.sites, always, strict=True) if alone]
    norms = run.table("gradient", "norm")
    known = {
        site
        for site, column in zip(norms.sites, norms.values.T, strict=True)
        if not np.isnan(column).all()
    }
    return [p for p in run.model.trainable if p in norms.sites and p not in known]


def _without_optimizer(run: Run) -> list[str]:
    """In no group when the run began, and never seen to change."""
    if not run.info.groups:
        return []
    changes = run.table("update", "norm")
    moved = {
        site
        for site, column in zip(changes.sites, changes.values.T, strict=True)
        if (column[~np.isnan(column)] > 0).any()
    }
    return [p for p in run.model.trainable if p not in run.model.group_of and p not in moved]


def _called(run: Run, parameter: str, called: set[str]) -> bool:
    """Whether its module, or a sibling of a bare parameter, ran."""
    module = run.model.module_of(parameter)
    return run.model.is_bare(parameter) or any(
        name == module or name.startswith(f"{module}.") for name in called
    )


def _cut_off(run: Run, sites: list[str]) -> Finding:
    deepest = sorted(sites, key=run.model.depth, reverse=True)
    module = run.model.module_of(deepest[0])
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=deepest,
        first_step=run.first_step,
        evidence=[
            evidence(
                f"{len(sites)} of {len(run.model.trainable)} parameters had no gradient at any of "
                f"{len(run.monitored)} monitored steps: {places(deepest)}",
                Key("gradient", deepest[0], "missing"),
                step=int(run.monitored[-1]),
                value=1,
                threshold=0,
            )
        ],
        explanation=(
            f"{places(deepest)} require a gradient and never get one: the graph is cut after "
            f"{module}. They stay as they were initialised."
        ),
        causes=[
            cause(
                f"a detach(), .data, torch.no_grad() or .item() after {module}",
                f"the output of {module} has grad_fn None, or a tensor behind it has",
                0.75,
            ),
            cause(
                "its output is computed but does not enter the loss",
                "the gradient of the loss with respect to its output is None although it has a "
                "grad_fn",
                0.25,
            ),
        ],
        fix=(
            f"let the gradient through: remove the detach()/no_grad() behind {module}, or set "
            "requires_grad=False if it is meant to stay fixed"
        ),
        change={"attach": list(deepest[:20])},
        confidence=0.95,
    )


def _outside(run: Run, sites: list[str], *, few: bool) -> Finding:
    return finding(
        __name__,
        run,
        severity=ERROR if few else WARNING,
        sites=sites,
        first_step=run.first_step,
        evidence=[
            evidence(
                f"{len(sites)} of {len(run.model.trainable)} parameters are in no parameter group "
                f"of the optimizer: {places(sites)}",
                Key("gradient", sites[0], "norm"),
                step=int(run.monitored[-1]),
            )
        ],
        explanation=(
            f"{places(sites)} get gradients, but no optimizer holds them: they never change."
        ),
        causes=[
            cause(
                "the optimizer was given only a part of the model, or was made before this part "
                "was added",
                "the block is missing from [p for g in optimizer.param_groups for p in "
                "g['params']]",
                0.8,
            ),
            cause(
                "they are meant to stay fixed",
                "the script passes a subset on purpose; then requires_grad_(False) saves their "
                "gradients too",
                0.4 if not few else 0.2,
            ),
        ],
        fix=(
            f"add them to the optimizer: optimizer.add_param_group({{'params': …}}) with "
            f"{places(sites)}, or build it from model.parameters()"
        ),
        change={"add_to_optimizer": list(sites[:20])},
        confidence=0.93 if few else 0.6,
    )


def _unused(run: Run, sites: list[str]) -> Finding:
    return finding(
        __name__,
        run,
        severity=INFO,
        sites=sites,
        first_step=run.first_step,
        evidence=[evidence(f"{len(sites)} parameters belong to modules that were not called")],
        explanation=f"{places(sites)} belong to modules that the forward pass does not call.",
        causes=[
            cause("a head or expert that is not used in this training", "it is never called", 0.7),
            cause("the forward pass forgets it", "reading forward() shows no call", 0.3),
        ],
        fix="nothing, if it is meant so; otherwise call the module in forward()",
        confidence=0.6,
    )
