"""Gradients fade on their way to the first layers.

**Shows as** a loss that hardly falls; the first layers get gradients thousands of times smaller
than the last.

**Why it hurts**: layers near the input learn nothing, whatever the learning rate of the others.

**Judged by** the RMS of the weights' gradients by depth: first layers below 1 % of the last and
below 1e-4; or below 1e-7 nearly everywhere while the loss has not been solved. In recurrent
layers, by a recurrent matrix that shrinks what it carries (radius far below 1) while the loss
stands still. Source: the stability guide (first < 1 % of last).

**Known false alarms**: a solved problem has tiny gradients too, and is exempt; so are embeddings,
whose rows are rarely used.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from torchvitals.record import Cause, Finding, Key
from torchvitals.rules.flow import Flow, gradient_flow
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places, share
from torchvitals.rules.thresholds import Thresholds

TITLE = "vanishing gradients"
NEEDS = ("gradient/rms",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """With depth, everywhere, or through time."""
    if len(run.monitored) < limits.flow_checks:
        raise NotChecked(f"needs {limits.flow_checks} monitored steps")
    loss = run.loss
    if loss and loss.falls and loss.now < limits.solved_share * loss.start:
        return None
    flow = gradient_flow(run)
    if flow is not None:
        rms = flow.rms[flow.rms > 0]
        if (
            len(rms)
            and 0 < flow.first < limits.vanishing_first
            and (flow.ratio < limits.vanishing_ratio and flow.steady > 0.3)
        ):
            return _with_depth(run, flow, limits)
        if len(rms) >= 0.5 * len(flow.rms) and np.median(rms) < limits.vanishing_rms:
            return _everywhere(run, flow, limits)
    return _through_time(run, limits)


def _causes(run: Run) -> list[Cause]:
    squashing = run.model.has_type("Sigmoid", "Tanh")
    return [
        cause(
            "saturating activations (sigmoid, tanh) in a deep stack",
            "replacing them by ReLU or GELU brings the first layers' gradients back",
            0.7 if squashing else 0.1,
        ),
        cause(
            "weights initialised too small for the depth",
            "the activations' standard deviation falls from layer to layer",
            0.4,
        ),
        cause(
            "no residual connections and no normalisation in a deep model",
            "a normalisation layer after each layer evens the gradients out",
            0.5 if not run.model.has_norms else 0.15,
        ),
    ]


def _with_depth(run: Run, flow: Flow, limits: Thresholds) -> Finding:
    stuck = not run.loss or run.loss.fallen < 0.3
    sigmoid = run.model.has_type("Sigmoid")
    weak = [s for s, r in zip(flow.sites, flow.rms, strict=True) if r < 0.01 * flow.last]
    return finding(
        __name__,
        run,
        severity=ERROR if stuck else WARNING,
        sites=weak or flow.sites[:1],
        first_step=run.first_step,
        evidence=[
            evidence(
                f"gradient RMS {num(flow.first)} in the first layers, {num(flow.last)} in the "
                "last: "
                f"{share(flow.ratio)}, healthy is above {share(limits.vanishing_ratio)}",
                Key("gradient", flow.sites[0], "rms"),
                step=run.last_step,
                value=flow.ratio,
                threshold=limits.vanishing_ratio,
            ),
            evidence(
                f"{len(weak)} of {len(flow.sites)} weights get less than 1 % of the last "
                f"layer's gradient: {places(weak)}"
            ),
        ],
        explanation=(
            f"The gradient shrinks on its way back: {flow.sites[0]} gets {num(flow.first)}, "
            f"{flow.sites[-1]} gets {num(flow.last)}. The first layers hardly learn."
        ),
        causes=_causes(run),
        fix=(
            "put a normalisation layer or a residual connection around each layer"
            + (", and use ReLU or GELU instead of sigmoid" if sigmoid else "")
        ),
        change={
            **({"activation": {"from": "Sigmoid", "to": "ReLU"}} if sigmoid else {}),
            "normalise": True,
        },
        confidence=min(0.95, 0.6 + 0.05 * -np.log10(max(flow.ratio, 1e-12))),
    )


def _everywhere(run: Run, flow: Flow, limits: Thresholds) -> Finding:
    middle = float(np.median(flow.rms[flow.rms > 0]))
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=flow.sites[:20],
        first_step=run.first_step,
        evidence=[
            evidence(
                f"the median weight's gradient RMS is {num(middle)}, healthy is above "
                f"{num(limits.vanishing_rms)}",
                Key("gradient", flow.sites[0], "rms"),
                step=run.last_step,
                value=middle,
                threshold=limits.vanishing_rms,
            )
        ],
        explanation="Gradients are near zero in all layers, though the loss is not solved.",
        causes=[
            *_causes(run),
            cause(
                "the loss is scaled down (divided by a large number)",
                "the loss's own value is tiny as well",
                0.3,
            ),
        ],
        fix="check the loss's scale, then normalise and re-initialise the layers",
        confidence=0.6,
    )


def _through_time(run: Run, limits: Thresholds) -> Finding | None:
    """A recurrent matrix that forgets, and a loss that stands still."""
    loss = run.loss
    if not loss.falls or len(loss) < limits.plateau_points or loss.fallen > 0.15:
        return None
    sizes = run.weights("parameter", "rms")
    for site in sizes.sites:
        shape = run.model.shape(site)
        if "weight_hh" not in site or run.model.type_of(site) not in {"RNN", "RNNCell"}:
            continue
        radius = float(sizes.typical(8)[sizes.sites.index(site)]) * sqrt(shape[-1])
        if radius < limits.recurrent_radius:
            return finding(
                __name__,
                run,
                severity=WARNING,
                sites=[site],
                first_step=run.first_step,
                evidence=[
                    evidence(
                        f"{site} has a spectral radius of about {num(radius)}: after 20 steps "
                        f"{num(radius**20)} of a signal is left",
                        Key("parameter", site, "rms"),
                        step=run.last_step,
                        value=radius,
                        threshold=limits.recurrent_radius,
                    )
                ],
                explanation=(
                    "The recurrent weights shrink what they carry, so that no gradient reaches "
                    "back over many time steps, and the loss stands still."
                ),
                causes=[
                    cause(
                        "the recurrent matrix was initialised too small",
                        "an orthogonal initialisation (radius 1) learns",
                        0.7,
                    ),
                    cause(
                        "the sequences are too long for a plain RNN",
                        "an LSTM or GRU learns the same data",
                        0.5,
                    ),
                ],
                fix=f"initialise {site} orthogonally (nn.init.orthogonal_), or use an LSTM",
                change={"init": {site: "orthogonal"}},
                confidence=0.7,
            )
    return None
