"""Single weights move far too much, or hardly at all.

**Shows as** ‖Δw‖/‖w‖ above 0.1 or below 1e-7 in some weights.

**Why it hurts**: above, a weight is another one after ten steps; below, it never learns.

**Judged by** the median ratio of each weight over the last eight monitored steps at full learning
rate, after 30 steps. Source: the stability guide; its bands by phase (1e-3…1e-2 in the first 1,000
steps, 1e-4…1e-3 to 10,000, 1e-5…1e-4 later) are shown as evidence.

**Known false alarms**: weights that began at zero (LoRA) have large ratios at first; weights below
1e-4 are exempt. A solved problem has small steps.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, places
from torchvitals.rules.steps import FULL, TINY_RMS
from torchvitals.rules.thresholds import Thresholds

TITLE = "update ratio out of range"
NEEDS = ("update/ratio",)

BANDS = ((1_000, 1e-3, 1e-2), (10_000, 1e-4, 1e-3), (10**12, 1e-5, 1e-4))


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Weights outside [1e-7, 0.1]."""
    table, sizes = run.weights("update", "ratio"), run.weights("parameter", "rms")
    if run.last_step < limits.ratio_steps or len(table.steps) < 4:
        raise NotChecked(f"needs {limits.ratio_steps} steps, four of them monitored")
    peak = run.lr_peak
    full = np.array([not run.lr_at(int(s)) < FULL * peak for s in table.steps], dtype=bool)
    if full.sum() < 4:
        return None
    typical = np.array(
        [np.nanmedian(c) if np.isfinite(c).any() else np.nan for c in table.values[full][-8:].T]
    )
    tiny = {s for s, v in zip(sizes.sites, sizes.typical(8), strict=True) if v < TINY_RMS}
    high = {
        s: float(v)
        for s, v in zip(table.sites, typical, strict=True)
        if v > limits.ratio_max and s not in tiny
    }
    low = {
        s: float(v)
        for s, v in zip(table.sites, typical, strict=True)
        if 0 < v < limits.ratio_min and not run.model.is_embedding(s)
    }
    if run.loss.falls and run.loss.now < limits.solved_share * run.loss.start:
        low = {}
    found = high or low
    if not found:
        return None
    sites = sorted(found, key=lambda s: -abs(np.log(found[s])))
    band = next(b for b in BANDS if run.last_step <= b[0])
    middle, lr = float(np.nanmedian(typical)), run.lr_peak
    worst = found[sites[0]]
    target = nice(lr * float(np.sqrt(band[1] * band[2])) / worst)
    several = len(found) > 0.5 * len(table.sites)
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=sites,
        first_step=int(table.steps[full][-8:][0]),
        evidence=[
            evidence(
                f"update ratio {num(worst)} of {sites[0]}, healthy is "
                f"{num(limits.ratio_min)} … {num(limits.ratio_max)}",
                Key("update", sites[0], "ratio"),
                step=int(table.steps[full][-1]),
                value=worst,
                threshold=limits.ratio_max if high else limits.ratio_min,
            ),
            evidence(
                f"the median weight is at {num(middle)}; in this phase {num(band[1])} … "
                f"{num(band[2])} is usual"
            ),
        ],
        explanation=(
            f"{places(sites)} move by {num(worst)} of themselves a step: "
            + ("too much to settle." if high else "too little to learn.")
        ),
        causes=[
            cause(
                "the learning rate does not fit " + ("the model" if several else "these layers"),
                "the ratio follows lr in proportion",
                0.6,
            ),
            cause(
                "the weights are unusually " + ("small" if high else "large"),
                "their RMS is far from that of the other layers",
                0.4,
            ),
        ],
        fix=(
            f"{'lower' if high else 'raise'} lr from {num(lr)} to {num(target)}"
            + ("" if several else f" for a parameter group with {places(sites)}")
        ),
        change={
            "lr": {"from": lr, "to": target, **({} if several else {"parameters": sites[:20]})}
        },
        confidence=0.55,
    )
