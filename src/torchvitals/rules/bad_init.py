"""Weights began at values they can't learn from.

**Shows as** units that stay copies of each other, a first loss far above guessing, activations
that explode or vanish from the first step.

**Why it hurts**: identical units get identical gradients for ever; weights far too large saturate
or blow up what follows.

**Judged by** the first monitored step: rows of a weight identical to other rows (symmetry), or a
standard deviation more than 3 times that of Kaiming's initialisation (√(2/fan_in)), 1.8 times in
most layers of a model without normalisation, or less than a hundredth of it in most layers.
Source: Glorot & Bengio 2010, He et al. 2015.

**Known false alarms**: single layers that begin at zero on purpose (LoRA, zero-initialised
residual branches, heads) and embeddings are exempt.
"""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "bad initialisation"
NEEDS = ("parameter/std",)
CHEAP = True


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Symmetry first, then scale."""
    return _symmetry(run, limits) or _scale(run, limits)


def _first(run: Run, stat: str) -> dict[str, float]:
    table = run.weights("parameter", stat)
    if not table or int(table.steps[0]) > run.first_step + run.every:
        return {}
    return {
        site: float(value)
        for site, value in zip(table.sites, table.values[0], strict=True)
        if np.isfinite(value) and not run.model.is_embedding(site) and not run.model.is_norm(site)
    }


def _symmetry(run: Run, limits: Thresholds) -> Finding | None:
    std, rms, twins = _first(run, "std"), _first(run, "rms"), _first(run, "twin_frac")
    if not std:
        return None
    alike = [s for s in std if twins.get(s, 0.0) > limits.init_twins and rms.get(s, 0.0) > 0]
    alike += [s for s in std if s not in alike and rms[s] > 0 and std[s] < 1e-6 * rms[s]]
    zero = [s for s in std if rms[s] == 0]
    if len(zero) >= 2 and len(zero) >= 0.5 * len(std):
        alike += zero
    if not alike:
        return None
    sites = sorted(alike, key=run.model.depth)
    value = twins.get(sites[0], 1.0)
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=sites,
        first_step=run.first_step,
        evidence=[
            evidence(
                f"{share(value)} of the units of {sites[0]} have the same weights as another unit, "
                "healthy is 0 %",
                Key("parameter", sites[0], "twin_frac"),
                step=run.first_step,
                value=value,
                threshold=limits.init_twins,
            ),
            evidence(
                f"std {num(std[sites[0]])} at rms {num(rms[sites[0]])} at the first step",
                Key("parameter", sites[0], "std"),
                step=run.first_step,
                value=std[sites[0]],
            ),
        ],
        explanation=(
            f"The units of {places(sites)} began with the same weights: they compute the same, get "
            "the same gradient and stay the same. The layer is worth a single unit."
        ),
        causes=[
            cause(
                "the weights were filled with a constant",
                f"{sites[0]} has std 0 before the first step",
                0.85,
            ),
            cause(
                "weights were copied (tiled, repeated) into a wider layer",
                "the rows repeat with a period",
                0.2,
            ),
        ],
        fix=f"initialise {places(sites)} at random: nn.init.kaiming_normal_(weight), bias 0",
        change={"init": dict.fromkeys(sites[:20], "kaiming")},
        confidence=0.95,
    )


def _scale(run: Run, limits: Thresholds) -> Finding | None:
    std = _first(run, "std")
    ratios = _first_ratio(run)
    off = {
        site: value / sqrt(2.0 / max(prod(run.model.shape(site)[1:]), 1))
        for site, value in std.items()
        # After a first step that large the initial weights can't be told any more.
        if value > 0 and ratios.get(site, 0.0) < limits.init_first_ratio
    }
    large = [site for site, factor in off.items() if factor > limits.init_large]
    if not large and not run.model.has_norms:
        # Factors multiply from layer to layer, and nothing evens them out.
        most = [site for site, factor in off.items() if factor > limits.init_large_all]
        large = most if len(most) >= max(2, 0.75 * len(off)) else []
    small = [site for site, factor in off.items() if factor < limits.init_small]
    if not large and (len(small) < 2 or len(small) < 0.5 * len(off)):
        return None
    sites = sorted(large or small, key=run.model.depth)
    worst = max(sites, key=lambda s: abs(np.log(off[s])))
    target = sqrt(2.0 / prod(run.model.shape(worst)[1:]))
    loud = bool(large) and run.loss.falls and (run.loss.fallen < 0.5 or len(large) > 1)
    word = "large" if large else "small"
    return finding(
        __name__,
        run,
        severity=ERROR if loud and off[worst] > 3 * limits.init_large else WARNING,
        sites=sites,
        first_step=run.first_step,
        evidence=[
            evidence(
                f"std {num(std[worst])} of {worst} at the first step, {num(off[worst])} times "
                f"Kaiming's {num(target)}",
                Key("parameter", worst, "std"),
                step=run.first_step,
                value=off[worst],
                threshold=limits.init_large if large else limits.init_small,
            ),
            evidence(f"{len(sites)} of {len(std)} weights began too {word}: {places(sites)}"),
        ],
        explanation=(
            f"{places(sites)} began with weights {num(off[worst])} times the size that keeps "
            "signals at the same scale from layer to layer."
        ),
        causes=[
            cause(
                "an initialisation with a fixed std, or a factor too much",
                f"std {num(std[worst])} does not follow from fan_in "
                f"{prod(run.model.shape(worst)[1:])}",
                0.75,
            ),
            cause(
                "weights loaded from a model of another width or precision",
                "the checkpoint's std is the same",
                0.2,
            ),
        ],
        fix=(
            f"initialise with std √(2/fan_in): {worst} from {num(std[worst])} to {num(target)} "
            "(nn.init.kaiming_normal_)"
        ),
        change={
            "init_std": {
                site: {"from": std[site], "to": sqrt(2.0 / prod(run.model.shape(site)[1:]))}
                for site in sites[:20]
            }
        },
        confidence=0.85 if large else 0.6,
    )


def _first_ratio(run: Run) -> dict[str, float]:
    table = run.weights("update", "ratio")
    return dict(zip(table.sites, table.values[0].tolist(), strict=True)) if table else {}
