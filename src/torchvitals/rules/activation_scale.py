"""Signals grow or shrink from layer to layer.

**Shows as** activations whose standard deviation doubles, or halves, with every layer.

**Why it hurts**: after ten layers it is a factor of a thousand: saturation, vanishing or
exploding gradients follow.

**Judged by** the RMS of the outputs of weight layers by depth at the first monitored steps: a
factor outside 0.5 … 2 a layer over at least four layers, compounding to more than 30.

**Known false alarms**: residual streams grow slowly with depth; models that normalise are judged
by the same limits and rarely reach them.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num
from torchvitals.rules.thresholds import Thresholds

TITLE = "activation scale"
NEEDS = ("activation/rms",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """The factor a layer, of the layers with weights."""
    table = run.table("activation", "rms")
    owners = {run.model.module_of(weight) for weight in run.model.weights}
    sites = [
        site
        for site in table.sites
        if site in owners and not run.model.is_embedding(site) and not run.model.is_norm(site)
    ]
    if len(sites) < limits.scale_layers:
        return None
    rows = table.pick(sites)
    if len(rows.steps) < 2:
        raise NotChecked("needs two monitored steps")
    early = rows.head(3).typical(3)
    pairs = [(s, float(v)) for s, v in zip(rows.sites, early, strict=True) if v > 0]
    # The head maps to other units than the layers before it.
    pairs = pairs[:-1]
    if len(pairs) < limits.scale_layers - 1:
        return None
    logs = np.log([value for _, value in pairs])
    slope = float(np.polyfit(np.arange(len(logs)), logs, 1)[0])
    factor, total = float(np.exp(slope)), float(np.exp(logs[-1] - logs[0]))
    if limits.scale_low <= factor <= limits.scale_high:
        return None
    if max(total, 1 / max(total, 1e-30)) < limits.scale_total:
        return None
    word = "grows" if factor > 1 else "shrinks"
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=[site for site, _ in pairs],
        first_step=int(rows.steps[0]),
        evidence=[
            evidence(
                f"activations {'grow' if factor > 1 else 'shrink'} by {num(factor)} a layer, from "
                f"{num(pairs[0][1])} to {num(pairs[-1][1])} over {len(pairs)} layers; healthy is "
                f"{num(limits.scale_low)} … {num(limits.scale_high)} a layer",
                Key("activation", pairs[-1][0], "rms"),
                step=int(rows.steps[0]),
                value=factor,
                threshold=limits.scale_high if factor > 1 else limits.scale_low,
            ),
        ],
        explanation=f"The signal {word} by a factor of {num(factor)} with every layer.",
        causes=[
            cause(
                "weights initialised too " + ("large" if factor > 1 else "small"),
                "the weights' std differs from √(2/fan_in)",
                0.6,
            ),
            cause(
                "no normalisation between the layers",
                "a norm layer evens it out",
                0.5 if not run.model.has_norms else 0.1,
            ),
        ],
        fix=f"initialise with std √(2/fan_in), or scale the weights by {num(1 / factor)}; put a "
        "normalisation layer after each layer",
        change={"init_scale": {"from": 1.0, "to": 1 / factor}},
        confidence=0.7,
    )
