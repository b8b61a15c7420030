"""`long_chunks` and `wide_chunks`: all values of a run in pieces that fit in memory.

Long: column by column in stored order, so that each compressed block is decoded about once and no
more than one column is in memory. Wide: `WIDE_STEPS` steps at a time, all columns of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import MISSING, ConfigError, Floats, Key, is_missing
from torchvitals.store import History
from torchvitals.store.answers import StepTimes

WIDE_STEPS = 1024


class LongChunk(NamedTuple):
    """All values of one column."""

    key: Key
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: Floats


class WideChunk(NamedTuple):
    """Some steps, all columns; `measured` is False where a column has no value."""

    keys: list[Key]
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: Floats
    measured: NDArray[np.bool_]


def chosen_keys(
    history: History,
    *,
    kinds: Sequence[str] = (),
    site: str | None = None,
    stats: Sequence[str] = (),
) -> list[Key]:
    """The stored columns that fit all that is asked for; ConfigError when none does."""
    keys = [
        key
        for key in history.keys(site=site)
        if (not kinds or key.kind in kinds) and (not stats or key.stat in stats)
    ]
    if not keys and history.keys():
        asked = [*kinds, *([f"site {site!r}"] if site else []), *(f"stat {stat}" for stat in stats)]
        raise ConfigError(
            f"no column of this run fits {', '.join(asked)}; it has {len(history.keys())} others, "
            f"of kinds {', '.join(dict.fromkeys(key.kind for key in history.keys()))}."
        )
    return keys


def long_chunks(history: History, keys: Sequence[Key]) -> Iterator[LongChunk]:
    """Each column in turn; measured NaN and Inf are values, what was not measured is left out."""
    end, time_of = _clock(history)
    for key in keys:
        steps, values = history.series(key, stop=end)
        yield LongChunk(key, steps, time_of(key.kind, steps), values)


def wide_chunks(
    history: History, keys: Sequence[Key], num_steps: int = WIDE_STEPS
) -> Iterator[WideChunk]:
    """Some steps at a time; steps at which none of the columns has a value are left out."""
    end, time_of = _clock(history)
    steps = history.steps()
    steps = steps[: int(np.searchsorted(steps, end))] if end is not None else steps
    for at in range(0, len(steps), num_steps):
        mine = steps[at : at + num_steps]
        values = np.full((len(mine), len(keys)), MISSING, dtype=np.float32)
        for column, key in enumerate(keys):
            found, numbers = history.series(key, start=int(mine[0]), stop=int(mine[-1]) + 1)
            there = np.isin(found, mine, assume_unique=True)
            values[np.searchsorted(mine, found[there]), column] = numbers[there]
        measured = ~is_missing(values)
        rows = measured.any(axis=1)
        yield WideChunk(
            list(keys), mine[rows], time_of(None, mine[rows]), values[rows], measured[rows]
        )


def _clock(
    history: History,
) -> tuple[int | None, Callable[[str | None, NDArray[np.int64]], NDArray[np.float64]]]:
    """The step to stop before (a running run goes on meanwhile), and when each step was stored."""
    everything = history.times()
    end = int(everything.steps[-1]) + 1 if len(everything.steps) else None
    known: dict[str | None, StepTimes] = {None: everything}

    def time_of(kind: str | None, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        if kind not in known:
            known[kind] = history.times(kind)
        at_steps, times = known[kind]
        if not len(steps):
            return np.empty(0, dtype=np.float64)
        place = np.minimum(np.searchsorted(at_steps, steps), len(at_steps) - 1)
        return np.where(at_steps[place] == steps, times[place], np.nan)

    return end, time_of
