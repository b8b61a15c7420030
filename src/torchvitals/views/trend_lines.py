"""Numbers over time as lines of a summary: what is said beside the drawn loss or evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from torchvitals.views import words
from torchvitals.views.columns import Trend
from torchvitals.views.evaluations import Evaluation
from torchvitals.views.grids import TrendLine
from torchvitals.views.outlook import Outlook
from torchvitals.views.terminal import trend_words

NUM_EVALUATIONS = 6


def trend_line(name: str, one: Trend, *texts: str) -> TrendLine:
    """What is not finite goes before anything else there is to say."""
    if one.num_bad:
        once = one.num_bad < one.num_values and isfinite(one.last)
        first = f"not finite from step {words.count(one.first_bad_step or 0)} on"
        texts = (f"not finite {words.plural(one.num_bad, 'time')}" if once else first,)
    return TrendLine(name, one.spark, trend_words(one), texts or ("",))


def loss_line(loss: Trend, outlook: Outlook | None) -> TrendLine:
    """The loss: where it goes, and the best there was."""
    word = "" if outlook is None else _known(outlook.word)
    return trend_line(loss.name, loss, *_best(word, loss.low, loss.low_step))


def evaluation_lines(found: Sequence[Evaluation]) -> Iterator[TrendLine]:
    """A line each, and how many more there are."""
    for one in found[:NUM_EVALUATIONS]:
        texts = _best(_known(one.word), one.best, one.best_step)
        if one.best_step == one.trend.last_step and one.trend.num_values > 1:
            texts = ("best so far",)
        yield trend_line(one.trend.name, one.trend, *texts)
    if len(found) > NUM_EVALUATIONS:
        more = len(found) - NUM_EVALUATIONS
        yield TrendLine("", "", "", (f"and {more} more (--kind eval)",))


def _best(word: str, best: float | None, step: int | None) -> tuple[str, ...]:
    """In full, and shorter."""
    lead = f"{word}, " if word else ""
    if best is None or step is None:
        return (word,)
    short = f"best {words.number(best)}"
    return f"{lead}{short} at step {words.count(step)}", f"{lead}{short}", short


def _known(word: str) -> str:
    return "" if word == "unknown" else word
