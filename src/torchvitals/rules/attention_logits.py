"""Attention logits are huge.

**Shows as** a largest q·k/√d above 100 in some heads.

**Why it hurts**: the softmax becomes a hard choice with no gradient; training diverges soon
after.

**Judged by** the largest logit of each head over the last monitored steps: above 100; or above 20
where most heads began so in a model that could only guess (fresh heads begin near 1). Source:
Dehghani et al. 2023 (ViT-22B), Wortsman et al. 2023.

**Known false alarms**: heads that attend to one token on purpose stay well below.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.plateau import trivial_loss
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import num, places
from torchvitals.rules.table import Table
from torchvitals.rules.thresholds import Thresholds

TITLE = "attention logits grow"
NEEDS = ("attention/max_logit",)


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Heads with logits beyond the limit, steadily."""
    table = run.table("attention", "max_logit")
    if len(table.steps) < 3:
        raise NotChecked("needs three monitored steps")
    typical = np.abs(table.typical(8))
    limit = limits.attention_start if _began_sharp(run, table, limits) else limits.attention_logit
    sites = [s for s, v in zip(table.sites, typical, strict=True) if v > limit]
    if not sites:
        return None
    sites.sort(key=lambda s: -typical[table.sites.index(s)])
    worst = float(typical[table.sites.index(sites[0])])
    line = table.line(sites[0])
    begin = int(line.steps[int(np.argmax(np.abs(line.values) > limit))])
    from_start = begin <= run.first_step + 2 * run.every
    return finding(
        __name__,
        run,
        severity=ERROR if worst > 10 * limits.attention_logit else WARNING,
        sites=sites,
        first_step=begin,
        evidence=[
            evidence(
                f"largest logit {num(worst)} in {sites[0]}, healthy is below "
                f"{num(limit)}"
                + (" in a model that knows nothing yet" if limit < limits.attention_logit else ""),
                Key("attention", sites[0], "max_logit"),
                step=int(line.steps[-1]),
                value=worst,
                threshold=limit,
            ),
            evidence(f"{len(sites)} of {len(table.sites)} heads are above the limit"),
        ],
        explanation=(
            f"Queries and keys of {places(sites)} are so large that the softmax picks one position "
            "and lets no gradient through."
        ),
        causes=[
            cause(
                "query and key weights initialised too large",
                "the logits are huge at the first step",
                0.7 if from_start else 0.15,
            ),
            cause(
                "queries and keys grow without bound",
                "the logits rise steadily with the steps",
                0.15 if from_start else 0.6,
            ),
            cause("the learning rate is too high", "a lower rate slows the growth", 0.3),
        ],
        fix="normalise queries and keys (QK-norm: LayerNorm or RMSNorm over the head "
        "dimension), or "
        f"scale the query and key weights by {num((10 / worst) ** 0.5)}",
        change={"qk_norm": {"from": False, "to": True}, "qk_scale": (10 / worst) ** 0.5},
        confidence=0.85,
    )


def _began_sharp(run: Run, table: Table, limits: Thresholds) -> bool:
    """Whether the heads were sharp at the first step, in a model that could only guess then."""
    guess = trivial_loss(run)
    if guess is None or not run.loss or run.loss.start < 0.8 * guess:
        return False
    return bool(np.nanmedian(np.abs(table.values[0])) > limits.attention_start)
