"""Gradients are far too large, or grow.

**Shows as** a gradient norm above 100 that grows, or first layers with a hundred times the
gradient of the last.

**Why it hurts**: one such step throws the weights away; with clipping, a single layer rules the
direction of every step and starves the rest.

**Judged by** the norm of all gradients before clipping: above 100 and growing (or all the time,
while nothing is learned), above 1000 at any rate; or by first layers with 70 times the RMS of the
last. The origin is the parameter with the largest gradient, the earliest among equals: bare
parameters (an `nn.Parameter` that scales the input) are named as well. Source: the stability
guide.

**Known false alarms**: a loss that is a sum, or regression on large targets, has large gradients
by nature; while the loss falls it is a warning at most.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.flow import gradient_flow
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, places, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "exploding gradients"
NEEDS = ("gradient/norm",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Too large, growing, or larger towards the input."""
    norms = run.root("gradient", "norm").finite
    if len(norms) < limits.flow_checks:
        raise NotChecked(f"needs {limits.flow_checks} monitored steps")
    now = float(np.median(norms.last(8)))
    start = float(np.median(norms.values[:4]))
    top = float(np.median(np.sort(norms.values)[-max(3, len(norms) // 10) :]))
    grown = max(now, top) / max(start, 1e-30)
    flow = gradient_flow(run)
    steep = (
        flow is not None
        and flow.ratio > limits.exploding_ratio
        and now > limits.exploding_steep_norm
        and flow.steady < -0.3
    )
    improving = run.loss.falls and run.loss.fallen > 0.3 and not run.loss.bad_steps
    huge = now > limits.exploding_norm_error or (
        start > limits.exploding_norm_error and not improving
    )
    growing = max(now, top) > limits.exploding_norm and grown > limits.exploding_growth
    # From the first step on, and nothing is learned: there need be no growth.
    steady = min(now, start) > limits.exploding_norm and run.loss.falls and run.loss.fallen < 0.2
    if not (huge or growing or steep or steady):
        return None
    if improving and not huge and not steep and now < limits.exploding_norm:
        return None  # it was over soon, and did no harm
    sites = origins(run)
    above = norms.steps[norms.values > limits.exploding_norm]
    first = int(above[0]) if len(above) else int(norms.steps[0])
    from_start = start > limits.exploding_norm
    bare = bool(sites) and run.model.is_bare(sites[0])
    target = nice(float(np.clip(np.median(norms.values[:4]), 0.1, 1.0)))
    shares = _shares(run, sites)
    told = [
        evidence(
            f"gradient norm {num(max(now, top if growing else now))}, {num(start)} at the start; "
            f"healthy is below {num(limits.exploding_norm)}",
            Key("gradient", ROOT, "norm"),
            step=run.last_step,
            value=now,
            threshold=limits.exploding_norm,
        )
    ]
    if sites:
        told.append(
            evidence(
                f"{sites[0]} alone is {share(shares)} of the squared norm",
                Key("gradient", sites[0], "norm"),
                step=run.last_step,
                value=shares,
            )
        )
    if flow is not None:
        told.append(
            evidence(
                f"first layers {num(flow.first)}, last layers {num(flow.last)} RMS: ratio "
                f"{num(flow.ratio)}",
                Key("gradient", flow.sites[0], "rms"),
                value=flow.ratio,
                threshold=limits.exploding_ratio,
            )
        )
    if bare:
        fix = (
            f"start {sites[0]} at the identity: torch.ones if it multiplies, torch.zeros if it is "
            f"added, not torch.randn; and clip gradients at norm {num(target)}"
        )
        change = {"init": {sites[0]: "identity"}, **changed("max_norm", None, target)}
    else:
        fix = f"clip gradients: torch.nn.utils.clip_grad_norm_(model.parameters(), {num(target)})"
        change = changed("max_norm", None, target)
    return finding(
        __name__,
        run,
        severity=WARNING if improving else ERROR if huge or growing or steady else WARNING,
        sites=sites or [ROOT],
        first_step=first,
        evidence=told,
        explanation=(
            f"The gradient norm is {num(now)} ({num(start)} at the start)"
            + (f"; {_whence(shares)} {places(sites[:1])}" if sites else "")
            + (", a bare parameter: everything behind it sees its scale." if bare else ".")
        ),
        causes=[
            cause(
                "an initialisation or scale that is too large at the origin",
                f"the norm is large at the very first step ({num(start)})",
                0.8 if bare else 0.6 if from_start else 0.2,
            ),
            cause(
                "the learning rate is too high",
                "the norm is small at first and grows with the steps",
                0.2 if from_start else 0.6,
            ),
            cause(
                "a recurrent or very deep stack multiplies the gradient at each step",
                "shorter sequences or fewer layers have a smaller norm",
                0.5 if run.model.has_type("RNN", "LSTM", "GRU") else 0.2,
            ),
            cause(
                "the loss is a sum instead of a mean", "the norm doubles with the batch size", 0.15
            ),
        ],
        fix=fix,
        change=change,
        confidence=0.85 if huge or (growing and not improving) else 0.6,
    )


def origins(run: Run) -> list[str]:
    """Parameters by their part in the gradient, the origin first.

    Biases and the scales of norms follow their layers and are left out. Of those with at least a
    third of the largest norm the one nearest to the input is the origin.
    """
    table = run.parameters("gradient", "norm")
    if not table:
        return []
    typical = np.where(np.isfinite(table.typical(8)), table.typical(8), 0.0)
    norms = {
        site: float(value)
        for site, value in zip(table.sites, typical, strict=True)
        if (len(run.model.shape(site)) >= 2 or run.model.is_bare(site))
        and not run.model.is_norm(site)
    }
    if not norms or max(norms.values()) <= 0:
        return []
    large = [site for site, norm in norms.items() if norm >= max(norms.values()) / 3]
    first = min(large, key=run.model.depth)
    rest = sorted((s for s in norms if s != first), key=lambda s: -norms[s])
    return [first, *[site for site in rest if norms[site] >= 0.1 * max(norms.values())]]


def _whence(share_of_origin: float) -> str:
    return "most of it comes from" if share_of_origin >= 0.5 else "it begins at"


def _shares(run: Run, sites: list[str]) -> float:
    if not sites:
        return float("nan")
    whole = float(np.median(run.root("gradient", "norm").finite.last(8)))
    part = float(np.median(run.table("gradient", "norm").line(sites[0]).last(8)))
    return min(1.0, (part / whole) ** 2) if whole > 0 else float("nan")
