"""Weights grow without bound, or one jumped.

**Shows as** a weight norm that doubles and doubles again, or an element that is suddenly a
hundred times larger than before.

**Why it hurts**: outputs and gradients grow with it; a flipped bit or a bad write ruins the
layer.

**Judged by** the norm of each weight: more than four times what it was half the run before, and
growing faster than linearly; or a largest element of a single tensor that jumps twentyfold between
two monitored steps without updates of that size. Source: the stability guide.

**Known false alarms**: weights that began near zero are exempt; early growth that slows down is
normal.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num, places
from torchvitals.rules.table import Table
from torchvitals.rules.thresholds import Thresholds

TITLE = "weight blow-up"
NEEDS = ("parameter/norm",)


FELLOWS = 0.2
"""Other weights that grew by this share of the limit at the same time: it was no single write."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """A jump first, then growth."""
    if len(run.monitored) < limits.blow_up_checks:
        raise NotChecked(f"needs {limits.blow_up_checks} monitored steps")
    return _jump(run, limits) or _growth(run, limits)


def _jump(run: Run, limits: Thresholds) -> Finding | None:
    low, high = run.parameters("parameter", "min"), run.parameters("parameter", "max")
    if not low or not high or low.values.shape != high.values.shape:
        return None
    largest = np.fmax(np.abs(low.values), np.abs(high.values))
    usual = run.parameters("parameter", "rms")
    if usual.values.shape != largest.shape:
        return None
    moves = run.parameters("update", "max")
    found: tuple[float, int, int] | None = None
    with np.errstate(divide="ignore", invalid="ignore"):
        jump = largest[1:] / np.maximum(largest[:-1], 4 * usual.values[:-1])
    for row, at in zip(*np.nonzero(jump > limits.blow_up_jump), strict=True):
        if usual.values[row, at] < 1e-6 or largest[row + 1, at] < 1.0:
            continue
        if found is None or jump[row, at] > found[0]:
            found = float(jump[row, at]), int(row) + 1, int(at)
    if found is None:
        return None
    factor, row, at = found
    if np.count_nonzero(jump[row - 1] > FELLOWS * limits.blow_up_jump) > max(
        2, 0.2 * len(low.sites)
    ):
        return None  # many at once: no flipped bit, but steps that were too large
    site, step = low.sites[at], int(low.steps[row])
    by_step = _by_steps(run, moves, site, (int(low.steps[row - 1]), step), float(largest[row, at]))
    if by_step or (run.loss.bad_steps and run.loss.bad_steps[0] < step):
        return None  # the optimizer did it: other rules tell why
    return finding(
        __name__,
        run,
        severity=ERROR,
        sites=[site],
        first_step=step,
        evidence=[
            evidence(
                f"the largest element of {site} went from {num(largest[row - 1, at])} to "
                f"{num(largest[row, at])} by step {step}, {num(factor)}-fold",
                Key("parameter", site, "max"),
                step=step,
                value=float(largest[row, at]),
                threshold=limits.blow_up_jump,
            ),
            evidence("no measured update is of that size"),
        ],
        explanation=(
            f"An element of {site} jumped to {num(largest[row, at])} between two monitored steps, "
            "while the others stayed: something else than learning wrote it."
        ),
        causes=[
            cause(
                "a flipped bit in memory, or a faulty device",
                "exactly one element differs from the checkpoint before by a power of two",
                0.6,
            ),
            cause(
                "code that writes into the weights",
                "the same step does it again when replayed",
                0.4,
            ),
        ],
        fix=f"restore {site} from the checkpoint before step {step}, and test the memory",
        change={"roll_back_to": int(low.steps[row - 1])},
        confidence=0.85,
    )


def _by_steps(run: Run, moves: Table, site: str, between: tuple[int, int], largest: float) -> bool:
    """Whether the optimizer's own steps, as large as the one measured, could have done it."""
    moved = moves.line(site).until(between[1]).values[-1:] if moves else np.empty(0)
    return bool((np.abs(moved) * max(between[1] - between[0], 1) > 0.3 * largest).any())


def _growth(run: Run, limits: Thresholds) -> Finding | None:
    norms, sizes = run.weights("parameter", "norm"), run.weights("parameter", "rms")
    if len(norms.steps) < limits.blow_up_checks or norms.values.shape != sizes.values.shape:
        return None
    values = norms.values
    half = len(values) // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        late, early = values[-1] / values[half], values[half] / values[0]
        grown = (late > limits.blow_up_growth) & (late > early) & (sizes.values[half] > 1e-3)
    sites = [site for site, bad in zip(norms.sites, grown, strict=True) if bad]
    if not sites:
        return None
    worst = max(sites, key=lambda s: late[norms.sites.index(s)])
    factor = float(late[norms.sites.index(worst)])
    lr = run.lr_now
    path = values[:, norms.sites.index(worst)]
    left = np.flatnonzero(path[half:] > 2.0 * path[half])
    return finding(
        __name__,
        run,
        severity=WARNING,
        sites=[worst, *[s for s in sites if s != worst]],
        first_step=int(norms.steps[half + int(left[0]) if len(left) else half]),
        evidence=[
            evidence(
                f"the norm of {worst} grew {num(factor)}-fold since step "
                f"{int(norms.steps[half])}, faster than before",
                Key("parameter", worst, "norm"),
                step=int(norms.steps[-1]),
                value=factor,
                threshold=limits.blow_up_growth,
            ),
        ],
        explanation=f"The weights of {places(sites)} grow faster and faster.",
        causes=[
            cause("the learning rate is too high", "update ratios are above 0.01", 0.5),
            cause(
                "nothing holds the weights back (no decay, no norm)",
                "weight decay 0.1 stops the growth",
                0.4,
            ),
        ],
        fix=f"lower lr from {num(lr)} to {num(nice(lr / 3))}, or use weight decay 0.1",
        change={**changed("lr", lr, nice(lr / 3)), "weight_decay": {"to": 0.1}},
        confidence=0.6,
    )
