"""`evaluations`: what was measured on held-out data, with the best value and where it was."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from torchvitals.curves import trend_of
from torchvitals.store import History
from torchvitals.views.columns import Trend, trend
from torchvitals.views.layers import SPARK_WIDTH

LOW: Final = re.compile(
    r"loss|err(or)?s?|perplexity|ppl|nll|bp[bc]|[wc]er|r?ms(e|le)|mae|mape|fid|kl|distance"
)
HIGH: Final = re.compile(
    r"accuracy|acc|top[15]|f1|au(ro)?c|m?ap|m?iou|dice|precision|recall|bleu|rouge|score|reward"
    r"|return|psnr|ssim|r2|correlation"
)
"""Words in a name that say which way is better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One number of one split over time."""

    split: str
    name: str
    trend: Trend
    word: str
    """falling, flat or rising lately; unknown with few evaluations."""
    higher_is_better: bool | None
    """Told by the name; None when it tells nothing."""
    best: float | None
    best_step: int | None


def evaluations(
    history: History, *, stop: int | None = None, spark_width: int = SPARK_WIDTH
) -> list[Evaluation]:
    """All evaluations in stored order."""
    found = []
    for key in history.keys("eval"):
        line = trend(history, key, stop=stop, spark_width=spark_width)
        if line is None:
            continue
        steps, values = history.series(key, stop=stop)
        higher = higher_is_better(key.stat)
        at = None
        if higher is not None and np.isfinite(values).any():
            sought = np.where(np.isfinite(values), -values if higher else values, np.inf)
            at = int(np.argmin(sought))
        found.append(
            Evaluation(
                split=key.site,
                name=key.stat,
                trend=line,
                word=trend_of(steps, values).word,
                higher_is_better=higher,
                best=None if at is None else float(values[at]),
                best_step=None if at is None else int(steps[at]),
            )
        )
    return found


def higher_is_better(name: str) -> bool | None:
    """By the words in it: ``top1_accuracy`` yes, ``mse`` no, ``temperature`` who knows."""
    parts = re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
    if any(map(LOW.fullmatch, parts)):  # the error of a score is still an error
        return False
    return True if any(map(HIGH.fullmatch, parts)) else None
