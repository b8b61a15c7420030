"""A NaN or Inf appeared in the forward pass, the loss, a gradient or a weight.

**Shows as** a loss that is NaN, or weights that are: from then on every step is lost.

**Why it hurts**: one NaN in a gradient makes a NaN of every weight the optimizer steps with it.

**Judged by** the counts of non-finite elements of every tensor and by the loss. The origin is the
first in execution order at the first step at which anything was not finite: activations from the
input on, then the loss, then gradients from the loss back, then weights.

**Known false alarms**: −Inf in an activation alone (masked scores) is not counted. A single bad
batch that was skipped is a warning, not an error.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Cause, Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, places
from torchvitals.rules.thresholds import Thresholds

TITLE = "NaN or Inf"
NEEDS = ()
CHEAP = True

STATS = {
    "activation": ("num_nan", "num_posinf"),
    "gradient": ("num_nan", "num_posinf", "num_neginf"),
    "update": ("num_nan", "num_posinf", "num_neginf"),
    "parameter": ("num_nan", "num_posinf", "num_neginf"),
}


def check(run: Run, limits: Thresholds) -> Finding | None:
    """The first tensor that was not finite, in the order in which a step computes."""
    seen = {kind: bad_sites(run, kind) for kind in STATS}
    loss_steps = run.loss.bad_steps
    starts = [min(first for first, _ in sites.values()) for sites in seen.values() if sites]
    starts += loss_steps[:1]
    if not starts:
        return None
    begin = min(starts)
    origin, kind = _origin(run, seen, loss_steps, begin)
    still = _still(run, seen, loss_steps)
    everywhere = sorted({site for sites in seen.values() for site in sites}, key=run.model.depth)
    sites = [origin, *(site for site in everywhere if site != origin)]
    growth = _growth(run, begin)
    what = {
        "activation": f"the output of {origin}",
        "loss": "the loss, while all activations before it were finite",
        "unseen": "the loss (tensors were not measured at that step)",
        "gradient": f"the gradient of {origin}, while the forward pass was finite",
    }.get(kind, f"the {kind} of {origin}")
    grew = growth > limits.non_finite_growth
    blamed = _causes(kind, grew=grew, still=still)
    lr = run.lr_at(begin)
    change = {}
    if grew and lr > 0:
        fix = f"lower lr from {num(lr)} to {num(nice(lr / 10))} and clip gradients at norm 1.0"
        change = {**changed("lr", lr, nice(lr / 10)), **changed("max_norm", _clip(run), 1.0)}
    elif kind in {"loss", "gradient"}:
        fix = (
            "guard the loss: clamp what goes into log, sqrt or a division to at least 1e-8 "
            "(torch.log(p.clamp_min(1e-8))), or use the function that takes logits"
        )
        change = changed("clamp_min", 0.0, 1e-8)
    else:
        where = "" if origin == ROOT else f" and at {origin}"
        fix = (
            f"look at the batch of step {begin}{where}; skip steps whose loss or gradients are not "
            "finite"
        )
        change = {"skip_non_finite": {"from": False, "to": True}}
    key = Key.scalar(run.loss.name) if kind in {"loss", "unseen"} else Key(kind, origin, "num_nan")
    return finding(
        __name__,
        run,
        severity=ERROR if still else WARNING,
        sites=sites,
        first_step=begin,
        last_step=None if still else _end(seen, loss_steps),
        evidence=[
            evidence(f"step {begin}: {what} holds NaN or Inf", key, step=begin, value=float("nan")),
            *(
                evidence(
                    f"{len(sites)} tensor(s) of kind {k} not finite: {places(list(sites))}",
                    Key(k, next(iter(sites)), "num_nan"),
                    step=min(first for first, _ in sites.values()),
                )
                for k, sites in seen.items()
                if sites
            ),
        ],
        explanation=(
            f"At step {begin} the first NaN or Inf appeared in {what}. "
            + (
                "It has not gone away since: the weights or the loss are lost, and every further "
                "step is wasted."
                if still
                else "Later steps were finite again."
            )
            + (f" Gradients or loss had grown {num(growth)}-fold just before." if grew else "")
        ),
        causes=blamed,
        fix=fix,
        change=change,
        confidence=0.95 if still else 0.8,
    )


def bad_sites(run: Run, kind: str) -> dict[str, tuple[int, int]]:
    """Site → first and last step at which it was not finite."""
    found: dict[str, tuple[int, int]] = {}
    for stat in STATS[kind]:
        table = run.table(kind, stat)
        if not table:
            continue
        bad = table.values > 0
        for at in np.flatnonzero(bad.any(axis=0)):
            steps = table.steps[bad[:, at]]
            first, last = int(steps[0]), int(steps[-1])
            before = found.get(table.sites[at], (first, last))
            found[table.sites[at]] = min(first, before[0]), max(last, before[1])
    return found


def _origin(
    run: Run, seen: dict[str, dict[str, tuple[int, int]]], loss: list[int], begin: int
) -> tuple[str, str]:
    def at_begin(kind: str) -> list[str]:
        return [site for site, (first, _) in seen[kind].items() if first <= begin]

    forward = at_begin("activation")
    if forward:
        return min(forward, key=run.model.depth), "activation"
    if loss and loss[0] <= begin:
        return ROOT, "loss" if begin in run.steps_of("activation") else "unseen"
    backward = at_begin("gradient")
    if backward:
        return max(backward, key=run.model.depth), "gradient"
    for kind in ("update", "parameter"):
        if at_begin(kind):
            return min(at_begin(kind), key=run.model.depth), kind
    return ROOT, "loss"


def _still(run: Run, seen: dict[str, dict[str, tuple[int, int]]], loss: list[int]) -> bool:
    """Whether it goes on: weights that are NaN stay so, a loss that ends in NaN too."""
    if len(run.monitored):
        last = int(run.monitored[-1])
        if any(end >= last for sites in seen.values() for _, end in sites.values()):
            return True
        if any(end >= last for _, end in seen["parameter"].values()):
            return True
    return bool(loss) and loss[-1] == int(run.loss.line.steps[-1])


def _end(seen: dict[str, dict[str, tuple[int, int]]], loss: list[int]) -> int:
    ends = [end for sites in seen.values() for _, end in sites.values()]
    return max([*ends, *loss[-1:]])


def _growth(run: Run, begin: int) -> float:
    """How much the loss or gradient norm had grown before, against their level until then."""
    found = 1.0
    for line in (run.loss.finite, run.root("gradient", "norm").finite):
        before = line.until(begin)
        if len(before) >= 3 and np.median(before.values) > 0:
            found = max(found, float(before.values[-3:].max() / np.median(before.values)))
    return found


def _clip(run: Run) -> float | None:
    norm, ratio = run.root("gradient", "norm"), run.root("gradient", "clip_ratio")
    return float(norm.values[-1] / ratio.values[-1]) if norm and ratio else None


def _causes(kind: str, *, grew: bool, still: bool) -> list[Cause]:
    return [
        cause(
            "the steps were too large: values grew until they overflowed",
            "loss or gradient norm rise for several steps before the first NaN; a run with lr ÷ 10 "
            "has none",
            0.7 if grew else 0.15,
        ),
        cause(
            "the loss computes log(0), 0/0 or sqrt'(0)",
            "all activations are finite at the first bad step; torch.autograd.set_detect_anomaly "
            "names the operation",
            0.7 if kind in {"loss", "gradient"} and not grew else 0.15,
        ),
        cause(
            "a bad batch: NaN, Inf or absurd values in the data",
            "the batch of that step, run through the model as it was before, gives NaN again; "
            "torch.isfinite(batch).all() is False",
            0.6 if kind in {"activation", "unseen"} and not grew else 0.2,
        ),
        cause(
            "overflow of fp16 (largest value 65504)",
            "the same step in bfloat16 or float32 is finite",
            0.1,
        ),
    ]
