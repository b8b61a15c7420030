"""A few activations are thousands of times larger than the rest.

**Shows as** a largest element more than 1000 times the layer's RMS.

**Why it hurts**: low precision and quantisation lose everything else; attention sinks form around
them.

**Judged by** max|x|/rms of each layer over the last monitored steps. Information: large language
models train well with them. Source: Sun et al. 2024.

**Known false alarms**: see above; sparse outputs.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import INFO, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places
from torchvitals.rules.thresholds import Thresholds

TITLE = "massive activations"
NEEDS = ("activation/max",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Outliers of single elements."""
    high, low = run.table("activation", "max"), run.table("activation", "min")
    rms = run.table("activation", "rms")
    if len(rms.steps) < 3 or high.values.shape != rms.values.shape or low.sites != high.sites:
        raise NotChecked("needs three monitored steps")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.fmax(np.abs(high.values), np.abs(low.values)) / rms.values
    # The ends of outputs that were read in part are not known.
    known = ratio[np.isfinite(ratio).any(axis=1)][-8:]
    if not len(known):
        raise NotChecked("needs steps whose outputs were read whole")
    typical = np.nanmedian(np.where(np.isfinite(known), known, 0.0), axis=0)
    sites = [s for s, v in zip(high.sites, typical, strict=True) if v > limits.massive_ratio]
    if not sites:
        return None
    sites.sort(key=lambda s: -typical[high.sites.index(s)])
    at = high.sites.index(sites[0])
    begin = int(high.steps[int(np.argmax(ratio[:, at] > limits.massive_ratio))])
    return finding(
        __name__,
        run,
        severity=INFO,
        sites=sites,
        first_step=begin,
        evidence=[
            evidence(
                f"the largest output of {sites[0]} is {num(float(typical[at]))} times its RMS",
                Key("activation", sites[0], "max"),
                step=int(high.steps[-1]),
                value=float(typical[at]),
                threshold=limits.massive_ratio,
            ),
        ],
        explanation=f"Single outputs of {places(sites)} dwarf all others.",
        causes=[
            cause("attention sinks of a deep transformer", "they sit at the first token", 0.5),
            cause("an unstable layer", "the ratio grows with the steps", 0.4),
        ],
        fix="normalise before the layer, or watch it: they do no harm in float32",
        change={},
        confidence=0.35,
    )
