"""A layer in the optimizer stands still although it is meant to learn.

**Shows as** an update ratio of 0 for one layer while others move.

**Why it hurts**: the layer stays random, and the others have to work around it.

**Judged by** ‖Δw‖/‖w‖ ≤ 1e-12 at three monitored steps running while the learning rate of the
others is above zero.

**Known false alarms**: groups that are held at lr 0 on purpose (gradual unfreezing). A layer
whose gradient is zero (an idle expert) is told as information. Parameters with
requires_grad=False are never counted; a layer without any gradient is told by
`orphan_parameter`.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places
from torchvitals.rules.thresholds import Thresholds

TITLE = "frozen layer"
NEEDS = ("update/ratio",)
CHEAP = True

CREEPING = 1e-7
"""An update ratio that changes no bit of most float32 weights."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Layers whose last checks all found no change."""
    ratios = run.parameters("update", "ratio")
    patience = limits.frozen_patience
    if len(ratios.steps) < patience:
        raise NotChecked(f"needs {patience} monitored steps")
    # At the end of a schedule everything stands still.
    moving = np.array([run.lr_at(int(step)) != 0 for step in ratios.steps])
    values = ratios.values[moving][-patience:]
    steps = ratios.steps[moving]
    if len(values) < patience:
        return None
    still = ((values <= limits.frozen_ratio) & ~np.isnan(values)).all(axis=0)
    sites = [site for site, frozen in zip(ratios.sites, still, strict=True) if frozen]
    idle = _idle(run, patience)
    sites = [site for site in sites if site not in idle]
    if not sites or len(sites) >= 0.9 * len(ratios.sites):
        return None  # everything: no_effective_step
    if float(np.nanmedian(values[-1])) < CREEPING:
        return None  # the end of a schedule: all steps are below the last bit of a weight
    sites.sort(key=run.model.depth)
    slopes = run.table("gradient", "norm")
    pushed = [site for site in sites if (slopes.line(site).last(patience) > 0).any()]
    rates = {site: _rate(run, site) for site in sites}
    zero = [site for site in sites if rates[site] == 0]
    first = int(steps[_since(ratios.values[moving][:, ratios.sites.index(sites[0])], limits)])
    peak = run.lr_peak
    change: dict[str, object]
    if zero:
        why, fix = (
            "the parameter group has learning rate 0",
            (
                f"give the group of {places(zero)} the learning rate of the others: "
                f"lr from 0 to {num(peak)}"
            ),
        )
        change = {"lr": {"from": 0.0, "to": peak, "parameters": zero[:20]}}
    elif pushed:
        why, fix = (
            "gradients arrive, but the step changes nothing",
            (
                f"look at what happens to {places(sites)} after optimizer.step(): something "
                "writes the "
                "old values back, or the steps are below the last bit of the weights"
            ),
        )
        change = {"unfreeze": sites[:20]}
    else:
        why, fix = (
            "the gradient is zero",
            (
                f"find out why no gradient reaches {places(sites)}: dead units behind them, a "
                "mask, or "
                "an output that is multiplied by 0"
            ),
        )
        change = {"unfreeze": sites[:20]}
    return finding(
        __name__,
        run,
        # Without a gradient it may just not be in use (an idle expert).
        severity=WARNING if zero or pushed else INFO,
        sites=sites,
        first_step=first,
        evidence=[
            evidence(
                f"update ratio {num(float(values[-1, ratios.sites.index(sites[0])]))} at "
                f"{patience} checks running, frozen is at most {num(limits.frozen_ratio)}",
                Key("update", sites[0], "ratio"),
                step=int(steps[-1]),
                value=float(values[-1, ratios.sites.index(sites[0])]),
                threshold=limits.frozen_ratio,
            ),
            evidence(
                f"{len(sites)} of {len(ratios.sites)} parameters stand still; the median of all "
                f"is {num(float(np.nanmedian(values[-1])))}"
            ),
        ],
        explanation=f"{places(sites)} did not change for {patience} checks: {why}.",
        causes=[
            cause(
                "the parameter group has lr 0",
                "[g['lr'] for g in optimizer.param_groups] has a 0",
                0.9 if zero else 0.1,
            ),
            cause(
                "no gradient arrives",
                "the gradient norm is 0",
                0.8 if not pushed and not zero else 0.1,
            ),
            cause(
                "the weights are written back after the step (tied, clamped, re-parametrised)",
                "the values right after optimizer.step() differ from those of the next forward",
                0.5 if pushed and not zero else 0.05,
            ),
        ],
        fix=fix,
        change=change,
        confidence=0.93 if zero else 0.75,
    )


def _idle(run: Run, patience: int) -> set[str]:
    """Parameters that are not in use just now: the loss did not depend on them (idle experts)."""
    flags = run.table("gradient", "missing")
    if len(flags.steps) < patience:
        return set()
    unused = np.flatnonzero((flags.values[-patience:] >= 1).all(axis=0))
    return {flags.sites[at] for at in unused}


def _rate(run: Run, parameter: str) -> float:
    group = run.model.group_of.get(parameter)
    if group is None:
        return float("nan")
    sites = run.sites("optimizer", "lr")
    at = run.info.groups.index(group)
    if at < len(sites):
        line = run.line("optimizer", sites[at], "lr")
        if line:
            return float(line.values[-1])
    rate = group.options.get("lr")
    return float(rate) if isinstance(rate, int | float) else float("nan")


def _since(column: np.ndarray, limits: Thresholds) -> int:
    moved = np.flatnonzero(column > limits.frozen_ratio)
    return int(moved[-1]) + 1 if len(moved) else 0
