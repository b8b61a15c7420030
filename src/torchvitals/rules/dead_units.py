"""Units of a layer that never fire.

**Shows as** outputs of a ReLU-like layer that are zero for every sample of many batches.

**Why it hurts**: a unit that never fires gets no gradient and stays dead; the layer is smaller
than it looks.

**Judged by** the share of units active in fewer than 1 % of the rows **over many batches**: more
than half of a layer. A layer that is zero everywhere for three monitored steps counts at once. 70
% zeros in one batch are normal and not counted. Source: DeepDiagnosis's false alarms.

**Known false alarms**: very wide sparse layers on few classes. Functional activations (`F.relu`)
are not modules and are not seen.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import (
    ERROR,
    INFO,
    WARNING,
    NotChecked,
    cause,
    changed,
    evidence,
    finding,
)
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, places, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "dead units"
NEEDS = ("activation/zero_frac",)

DYING = ("ReLU", "ReLU6", "Threshold", "GELU", "SiLU", "Mish", "Softplus", "Hardswish")


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Layers with more dead than living units."""
    table, zeros = run.table("activation", "dead_frac"), run.table("activation", "zero_frac")
    dying = [site for site in zeros.sites if run.model.type_of(site) in DYING]
    if not dying and not table:
        raise NotChecked("no ReLU-like modules were seen; F.relu is not a module, use nn.ReLU")
    found: dict[str, tuple[float, int]] = {}
    for site in table.sites:
        line = table.line(site)
        if len(line) and float(np.median(line.last(3))) > limits.dead_share:
            since = int(line.steps[np.flatnonzero(line.values > limits.dead_share)[0]])
            found[site] = float(np.median(line.last(3))), since
    for site in dying:
        line = zeros.line(site)
        silent = len(line) >= limits.dead_checks and (line.last(limits.dead_checks) >= 0.999).all()
        if silent and run.model.type_of(site) in {"ReLU", "ReLU6", "Threshold"}:
            begin = np.flatnonzero(line.values < 0.999)
            since = int(line.steps[int(begin[-1]) + 1]) if len(begin) else int(line.steps[0])
            found[site] = 1.0, min(since, found.get(site, (0.0, since))[1])
    if not found:
        return None
    sites = sorted(found, key=lambda s: (found[s][1], run.model.depth(s)))
    worst = max(found, key=lambda s: found[s][0])
    dead, first = found[worst][0], min(since for _, since in found.values())
    from_start = first <= run.first_step + 12 * run.every
    stuck = run.loss.falls and run.loss.fallen < 0.2
    learns = run.loss.falls and run.loss.fallen > 0.4
    lr = run.lr_peak
    feeding = _feeding(run, sites[0])
    return finding(
        __name__,
        run,
        severity=(
            ERROR
            if dead > limits.dead_error or stuck
            # A sparse layer in a model that learns is no reason to be alarmed.
            else INFO
            if learns and dead < limits.dead_alarm
            else WARNING
        ),
        sites=sites,
        first_step=first,
        evidence=[
            evidence(
                f"{share(found[site][0])} of the units of {site} never fire, healthy is below "
                f"{share(limits.dead_share)}",
                Key("activation", site, "dead_frac"),
                step=run.last_step,
                value=found[site][0],
                threshold=limits.dead_share,
            )
            for site in sites[:3]
        ],
        explanation=(
            f"In {places(sites)} most units are zero for every input seen over many batches: they "
            "get no gradient and can't come back by themselves."
        ),
        causes=[
            cause(
                "a bias or initialisation that pushes the input of the layer below zero",
                "the units are dead from the first steps on",
                0.7 if from_start else 0.2,
            ),
            cause(
                "a step that was too large (learning rate, spike) threw the weights away",
                "the units died at one point, with a large update ratio",
                0.25 if from_start else 0.7,
            ),
            cause(
                "inputs that are all negative or not normalised",
                "the mean of the layer's input is far below zero",
                0.2,
            ),
        ],
        fix=(
            f"initialise the layer before {sites[0]}{f' ({feeding})' if feeding else ''} afresh "
            "with "
            "bias 0 and Kaiming weights, or use LeakyReLU(0.01)"
            if from_start
            else f"lower lr from {num(lr)} to {num(nice(lr / 5))} or warm up, and use "
            "LeakyReLU(0.01)"
        ),
        change=(
            {"init": {feeding or sites[0]: "kaiming, bias 0"}}
            if from_start
            else {
                **changed("lr", lr, nice(lr / 5)),
                "activation": {"from": "ReLU", "to": "LeakyReLU"},
            }
        ),
        confidence=0.9 if dead > limits.dead_error else 0.75,
    )


def _feeding(run: Run, site: str) -> str:
    """The module called just before."""
    order = run.activation_order()
    at = order.index(site) if site in order else 0
    return order[at - 1] if at > 0 else ""
