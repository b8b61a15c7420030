"""The learning rate is too high.

**Shows as** a loss that rises, swings or stays where it began while the weights move by several
per cent in every step.

**Why it hurts**: the step jumps over the valley; weights blow up, units die, the run is lost.

**Judged by** the update ratio ‖Δw‖/‖w‖ of the median weight (healthy: 1e-3 … 1e-2 early on)
together with the loss: not finite, above where it began, far above its best, or not halved while
weights or attention logits were blown up. Neither alone is enough. Source: the stability guide
(ratio > 0.1), Karpathy's 1e-3 rule.

**Known false alarms**: models with very small weights have large ratios and may be fine; then the
loss falls and this rule is silent.
"""

from __future__ import annotations

import numpy as np

from torchvitals.record import ROOT, Finding, Key
from torchvitals.rules.rule import ERROR, WARNING, NotChecked, cause, changed, evidence, finding
from torchvitals.rules.run import Run
from torchvitals.rules.say import nice, num
from torchvitals.rules.steps import early_size, first_size, size_now, step_sizes, weight_growth
from torchvitals.rules.thresholds import Thresholds

TITLE = "learning rate too high"
NEEDS = ("loss", "update/ratio", "optimizer/lr")


OPENING = 9.0
"""Adam's first steps, all of full size in one direction, are about so many times the later ones."""


def check(run: Run, limits: Thresholds) -> Finding | None:
    """Large steps and a loss that suffers from them."""
    loss, sizes = run.loss, step_sizes(run)
    if len(loss) < limits.lr_high_points or not sizes:
        raise NotChecked(f"needs {limits.lr_high_points} losses and measured updates")
    early, now = early_size(run), size_now(run)
    opening = _opening(run)
    largest = max(early, now, opening)
    if max(early, opening) <= limits.lr_high_ratio and _calm(run, limits):
        return None  # the same rate was fine before: something else made the steps large
    trouble, weight = _trouble(run, limits)
    steep = limits.lr_high_ratio * (2.0 if weight < 0.6 else 1.0)
    if trouble is None or not largest > steep:
        return None
    lr = run.lr_peak
    factor = float(np.clip(_off(run, limits, largest), 3.0, 1000.0))
    target = nice(lr / factor)
    above = sizes.steps[sizes.values > limits.lr_high_ratio]
    first = int(above[0]) if len(above) else run.first_step
    norm = run.root("gradient", "norm").finite
    grown = float(norm.values[-8:].mean() / max(np.median(norm.values[:8]), 1e-30)) if norm else 1.0
    # A loss that need not fall (reinforcement learning) stays where it began in good health too.
    mild = weight < 1.0 and largest < 3.0 * limits.lr_high_ratio and grown < 1.0
    return finding(
        __name__,
        run,
        severity=ERROR if weight >= 0.8 and not mild else WARNING,
        sites=[ROOT],
        first_step=first,
        evidence=[
            evidence(
                f"the median weight moves by {num(100 * largest)} % of itself in a step, "
                "healthy is "
                f"below {num(100 * limits.lr_high_ratio)} %",
                Key("summary", "update_ratio", "median"),
                step=first,
                value=largest,
                threshold=limits.lr_high_ratio,
            ),
            evidence(trouble, Key.scalar(loss.name), step=run.last_step, value=loss.now),
            evidence(
                f"the gradient norm is {num(grown)} times that of the first steps",
                Key("gradient", ROOT, "norm"),
                value=grown,
            ),
        ],
        explanation=(
            f"With lr {num(lr)} the median weight changes by {num(100 * largest)} % in a single "
            f"step, and {trouble}. The steps are too large for this model."
        ),
        causes=[
            cause(
                "the learning rate is too high for this model and batch size",
                f"a run with lr {num(target)} falls smoothly",
                0.75,
            ),
            cause(
                "there is no warm-up, and the first steps do the damage",
                "the same rate with a linear warm-up over 5 % of the steps is stable",
                0.35,
            ),
            cause(
                "the gradients are too large to begin with (initialisation, input scale, summed "
                "loss)",
                "the gradient norm is above 100 at the very first step",
                0.2,
            ),
        ],
        fix=f"lower lr from {num(lr)} to {num(target)}",
        change=changed("lr", lr, target),
        confidence=min(0.95, 0.5 + 0.4 * weight + 0.05 * np.log10(largest / limits.lr_high_ratio)),
    )


def _off(run: Run, limits: Thresholds, largest: float) -> float:
    """How many times too high: once it blew up, sizes say little, so the first steps tell."""
    if not run.model.is_adam:
        first = first_size(run)
        return (first if first >= limits.lr_high_ratio else largest) / limits.lr_good_ratio
    # Adam's first steps are the largest a weight sees; in a warm-up they grow with the rate.
    ratios = run.weights("update", "ratio")
    first = float(np.nanmedian(ratios.values[0])) if len(ratios.steps) else float("nan")
    rate = run.lr_at(int(ratios.steps[0])) if len(ratios.steps) else float("nan")
    if rate > 0 and 0 < first < 1:
        # The ratio is to the weight after the step; asked is that to the weight before it.
        largest = max(largest, first / np.sqrt(1 - first**2) * run.lr_peak / rate)
    return largest / (OPENING * limits.lr_good_ratio)


def _calm(run: Run, limits: Thresholds) -> bool:
    """Whether the loss fell well at the highest rate, before steps became large."""
    sizes, loss = step_sizes(run), run.loss
    above = sizes.steps[sizes.values > limits.lr_high_ratio]
    if not len(above) or not loss.falls:
        return False
    before = loss.finite.until(int(above[0]) - 1)
    rates = run.lr.until(int(above[0]) - 1)
    if len(before) < limits.lr_high_points or not rates:
        return False
    fell = float(np.median(before.last(8))) < limits.lr_high_fallen * loss.start
    return fell and float(np.max(rates.values)) >= 0.9 * run.lr_at(int(above[0]))


def _trouble(run: Run, limits: Thresholds) -> tuple[str | None, float]:
    """What the loss suffers from, in words, and how bad that is (0…1)."""
    loss = run.loss
    if loss.bad_steps and loss.bad_steps[-1] == int(loss.line.steps[-1]):
        return f"the loss is not finite since step {loss.bad_steps[0]}", 1.0
    if not loss.falls:
        return None, 0.0
    start, now, peak = loss.start, loss.now, float(loss.finite.values.max())
    settled = loss.direction.word in {"flat", "rising"} and run.lr_now > 0.3 * run.lr_peak
    huge = early_size(run) > 3.0 * limits.lr_high_ratio
    grown, logits = weight_growth(run), _attention_growth(run, limits)
    shove = _opening(run)
    signs = (
        (
            now > limits.lr_high_rise * start,
            f"the loss rose from {num(start)} to {num(now)}",
            1.0,
        ),
        (
            now > limits.lr_high_stuck * start and (len(loss) >= limits.lr_high_patience or huge),
            f"the loss is still at {num(now)}, where it began ({num(start)})",
            0.8,
        ),
        (
            peak > limits.lr_high_peak * start and now > 0.5 * start,
            f"the loss went up to {num(peak)} and is at {num(now)} now",
            0.7,
        ),
        (
            now > 2.0 * loss.best and now > 0.3 * start,
            f"the loss is at {num(now)}, far above its best {num(loss.best)}",
            0.6,
        ),
        (
            settled and loss.fallen < limits.lr_high_fallen,
            f"the loss has settled at {num(now)}, above half of its start",
            0.5,
        ),
        (
            grown > limits.lr_high_growth and loss.fallen < limits.lr_high_fallen,
            f"the steps have blown the median weight up to {num(grown)} times its first size, and "
            f"the loss is at {num(now)}, above half of its start",
            0.6,
        ),
        (
            early_size(run) > 2.0 * limits.lr_high_ratio
            and loss.fallen < limits.lr_high_fallen
            and len(loss) >= limits.lr_high_patience,
            f"the loss is at {num(now)} after {run.last_step} steps of that size, above half of "
            "its start",
            0.5,
        ),
        (
            logits > limits.attention_logit
            and (early_size(run) > limits.lr_high_ratio or shove > 3.0 * limits.lr_high_ratio),
            f"attention logits have grown to {num(logits)}",
            0.6,
        ),
    )
    return next(((text, weight) for holds, text, weight in signs if holds), (None, 0.0))


def _opening(run: Run) -> float:
    """The largest of the first steps: Adam's are, of weights that then grow out of proportion."""
    return float(np.max(step_sizes(run).values[:3]))


def _attention_growth(run: Run, limits: Thresholds) -> float:
    """The largest attention logit lately; 0 where they were as large from the start."""
    table = run.table("attention", "max_logit")
    if len(table.steps) < 4 or np.nanmax(np.abs(table.values[0])) > 0.5 * limits.attention_logit:
        return 0.0
    return float(np.nanmax(np.abs(table.typical(4))))
