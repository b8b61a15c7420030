"""The gradient norm jumped for a step.

**Shows as** a single gradient norm far above those before it.

**Why it hurts**: an unclipped spike moves the weights as far as hundreds of steps; Adam's second
moment remembers it and slows learning for long.

**Judged by** the robust z-score of the log norm (6 σ over the last 128 monitored steps, from the
16th on) and a ratio of at least four to the median before; ten is a warning. Source: OLMo-core,
ZClip.

**Known false alarms**: a changed learning rate or a resume resets the baseline; reinforcement
learning has heavy tails.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import INFO, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num
from torchvitals.rules.spikes import robust_z
from torchvitals.rules.thresholds import Thresholds

TITLE = "gradient spike"
NEEDS = ("gradient/norm",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """The largest jump of the overall norm."""
    line = run.root("gradient", "norm").finite
    if len(line) < limits.spike_least:
        raise NotChecked(f"needs {limits.spike_least} monitored steps")
    z, ratio = robust_z(line.values, limits.spike_window, limits.spike_least)
    with np.errstate(invalid="ignore"):
        spikes = (z > limits.spike_sigma) & (ratio > limits.gradient_spike_small)
    for reset in run.resets:
        spikes &= ~((line.steps >= reset) & (line.steps < reset + 4 * run.every))
    # A level that rises and stays is no spike.
    for place in np.flatnonzero(spikes):
        later = line.values[place + 1 : place + 9]
        if len(later) >= 4 and np.median(later) > 0.3 * line.values[place]:
            spikes[place] = False
    if not spikes.any():
        return None
    at = int(np.nanargmax(np.where(spikes, ratio, np.nan)))
    step, before = int(line.steps[at]), float(line.values[at] / ratio[at])
    target = nice(3.0 * before)
    clipped = run.root("gradient", "clip_ratio")
    large = ratio[at] > limits.gradient_spike and not clipped
    rows = run.parameters("gradient", "norm")
    sites = [ROOT]
    if step in rows.steps:
        row = rows.values[int(np.flatnonzero(rows.steps == step)[0])]
        sites = [rows.sites[int(np.nanargmax(row))]] if np.isfinite(row).any() else sites
    return finding(
        __name__,
        run,
        severity=WARNING if large else INFO,
        sites=sites,
        first_step=step if spikes.sum() == 1 else int(line.steps[spikes][0]),
        last_step=int(line.steps[spikes][-1]),
        evidence=[
            evidence(
                f"gradient norm {num(float(line.values[at]))} at step {step}, "
                f"{num(float(ratio[at]))} times the median before, {num(float(z[at]))} σ",
                Key("gradient", ROOT, "norm"),
                step=step,
                value=float(line.values[at]),
                threshold=limits.spike_sigma,
            )
        ],
        explanation=(
            f"At step {step} the gradient was {num(float(ratio[at]))} times as large as usual"
            + (" (it was clipped)." if clipped else ", and nothing held it back.")
        ),
        causes=[
            cause("a bad batch", "the same batch from another checkpoint spikes again", 0.6),
            cause(
                "a steep place in the loss (too large a step before it)",
                "the update ratio rose in the steps before",
                0.4,
            ),
        ],
        fix=f"clip gradients at norm {num(target)}, three times what is usual here",
        change=changed("max_norm", None, target),
        confidence=min(0.9, 0.4 + 0.2 * float(np.log10(ratio[at]))),
    )
