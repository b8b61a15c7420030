"""Weight decay is stronger than the gradient.

**Shows as** weight norms that shrink while the loss stays high.

**Why it hurts**: the weights are pulled to zero; the model forgets faster than it learns.

**Judged by** the decay's share of the update (lr · λ, or λ‖w‖ against ‖g‖ where decay is part of
the gradient, which may have been larger at first): above half of it, with norms that shrank to
less than half; or, where decay is decoupled, one that takes more than 0.5 % of every weight in each
step (it forgets what it learned 200 steps ago).

**Known false alarms**: a strong decay that is balanced by the gradient keeps norms steady, which
is healthy.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, share
from torchvitals.rules.table import Array, Table
from torchvitals.rules.thresholds import Thresholds

TITLE = "over-regularised"
NEEDS = ("parameter/norm", "optimizer/weight_decay")


EARLY = 3
"""Looks at the beginning of a run, in which gradients show what they are like."""

DECOUPLED = ("AdamW", "Lion", "Muon", "Adafactor")


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Decay beats the gradient, and the norms shrink."""
    norms = run.weights("parameter", "norm")
    if len(norms.steps) < limits.decay_checks:
        raise NotChecked(f"needs {limits.decay_checks} monitored steps")
    groups = run.sites("optimizer", "weight_decay")
    decay = max(
        (
            float(run.line("optimizer", g, "weight_decay").values[-1])
            for g in groups
            if run.line("optimizer", g, "weight_decay")
        ),
        default=0.0,
    )
    if not decay > 0:
        return None
    decoupled = run.model.optimizer in DECOUPLED or bool(run.model.option("decoupled_weight_decay"))
    with np.errstate(divide="ignore", invalid="ignore"):
        shrunk = norms.typical(4) / norms.values[0]
    if decoupled:
        ratios = run.weights("update", "ratio")
        share_of = run.lr_peak * decay / np.maximum(ratios.typical(8), 1e-30) if ratios else None
        sites_of = ratios.sites
    else:
        slopes = run.weights("gradient", "norm")
        both = norms.pick(slopes.sites)
        # Gradients that were there at first and went away have another reason.
        share_of = (
            decay * both.typical(8) / np.maximum(_at_their_best(slopes), 1e-30)
            if slopes and both.sites == slopes.sites
            else None
        )
        sites_of = slopes.sites
    if share_of is None:
        return None
    a_step = run.lr_peak * decay
    # A decay that takes that much a step leaves no memory, even where the gradient balances it.
    forgets = decoupled and a_step > limits.decay_forgets
    part = dict(zip(sites_of, share_of.tolist(), strict=True))
    sites = [
        site
        for site, factor in zip(norms.sites, shrunk, strict=True)
        if (factor < limits.decay_shrunk or forgets) and part.get(site, 0.0) > limits.decay_share
    ]
    if len(sites) < 0.5 * len(norms.sites):
        return None
    worst = float(np.median([part[site] for site in sites]))
    left = float(np.nanmedian(shrunk))
    target = nice(decay * 0.1 / max(worst, 1.0)) if worst > 1 else nice(decay / 30)
    target = min(max(target, 1e-6), 0.1)
    stuck = run.loss.falls and run.loss.fallen < 0.5
    return finding(
        __name__,
        run,
        severity=ERROR if stuck and left < 0.1 else WARNING,
        sites=sites,
        first_step=int(
            norms.steps[
                int(
                    np.argmax(
                        norms.values[:, norms.sites.index(sites[0])]
                        < 0.9 * norms.values[0, norms.sites.index(sites[0])]
                    )
                )
            ]
        ),
        evidence=[
            evidence(
                f"the decay is {num(worst)} times the gradient's part of the step, healthy is "
                f"below {num(limits.decay_share)}",
                Key("parameter", sites[0], "norm"),
                step=run.last_step,
                value=worst,
                threshold=limits.decay_share,
            ),
            evidence(
                f"the median weight norm is {share(left)} of what it was at first",
                Key("parameter", sites[0], "norm"),
                step=run.last_step,
                value=left,
                threshold=limits.decay_shrunk,
            ),
        ],
        explanation=(
            f"Weight decay {num(decay)} pulls the weights to zero faster than the gradient builds "
            f"them up: norms are at {share(left)} of their start."
            + (f" It takes {share(a_step)} of every weight in each step." if forgets else "")
        ),
        causes=[
            cause("weight decay is too large", f"with weight_decay {num(target)} norms stay", 0.85),
            cause("the gradients are too small", "the gradient norm is far below 0.01", 0.25),
        ],
        fix=f"lower weight_decay from {num(decay)} to {num(target)}",
        change=changed("weight_decay", decay, target),
        confidence=0.9,
    )


def _at_their_best(slopes: Table) -> Array:
    """How large each gradient is, or was in the first looks if it was larger then."""
    return np.fmax(slopes.typical(8), np.fmax.reduce(slopes.values[:EARLY], axis=0))
