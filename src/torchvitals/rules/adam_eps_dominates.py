"""Adam's ε is as large as the gradients.

**Shows as** √v̂ near or below ε: steps shrink in proportion to the gradient, as with plain SGD.

**Why it hurts**: Adam's scaling is switched off, and steps are far smaller than the learning rate
says.

**Judged by** the median over the weights of median √v̂/ε: below 10, over the last looks at the
moments.

**Known false alarms**: a solved problem has gradients near nothing, and is exempt.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num
from torchvitals.rules.thresholds import Thresholds

TITLE = "Adam's ε dominates"
NEEDS = ("optimizer/sqrt_v_over_eps",)

EASY = 0.8
"""Share of the loss that must be gone for a large ε to be information only."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """√v̂ within ten times ε in most weights."""
    table = run.weights("optimizer", "sqrt_v_over_eps")
    if len(table.steps) < limits.moment_checks:
        raise NotChecked(f"needs {limits.moment_checks} looks at Adam's moments")
    loss = run.loss
    if loss and loss.falls and loss.now < limits.solved_share * loss.start:
        return None
    typical = table.typical(4)
    sites = [
        site
        for site, value in zip(table.sites, typical, strict=True)
        # Exactly zero is no gradient at all, which is another ailment.
        if 0 < value < limits.eps_ratio and not run.model.is_embedding(site)
    ]
    if not sites or len(sites) < 0.5 * len(table.sites):
        return None
    value = float(np.nanmedian(typical))
    eps = run.model.option("eps")
    eps = float(eps) if isinstance(eps, int | float) else 1e-8
    target = min(1e-8, eps / 100) if eps > 1e-8 else float(f"{nice(eps * value / 100):.0e}")
    slow = not loss.falls or loss.fallen < (EASY if eps > 1e-6 else limits.eps_fallen)
    return finding(
        __name__,
        run,
        severity=WARNING if slow and eps > 1e-8 else INFO,
        sites=sites,
        first_step=int(table.steps[0]),
        evidence=[
            evidence(
                f"√v̂ is {num(value)} times ε = {num(eps)} in the median weight, healthy is above "
                f"{num(limits.eps_ratio)}",
                Key("optimizer", sites[0], "sqrt_v_over_eps"),
                step=int(table.steps[-1]),
                value=value,
                threshold=limits.eps_ratio,
            ),
            evidence(f"{len(sites)} of {len(table.sites)} weights are below the limit"),
        ],
        explanation=(
            f"Adam divides by √v̂ + ε, and ε = {num(eps)} is {num(1 / max(value, 1e-30))} times √v̂: "
            "the steps follow the gradient's size instead of the learning rate."
        ),
        causes=[
            cause(
                "ε was set too large",
                f"eps is {num(eps)}, the default is 1e-8",
                0.85 if eps > 1e-8 else 0.3,
            ),
            cause(
                "the gradients are tiny (loss scaled down, vanishing)",
                "the gradient RMS is below 1e-7",
                0.7 if eps <= 1e-8 else 0.15,
            ),
        ],
        fix=f"lower eps from {num(eps)} to {num(target)}",
        change=changed("eps", eps, target),
        confidence=0.9 if eps > 1e-7 else 0.6,
    )
