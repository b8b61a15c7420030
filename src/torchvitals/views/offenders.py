"""The parameters with the largest gradients and the smallest updates at a step, by name."""

from __future__ import annotations

from typing import NamedTuple

from torchvitals.record import Key
from torchvitals.store.history import History


class Offenders(NamedTuple):
    """(parameter, value), worst first."""

    largest_gradients: list[tuple[str, float]]
    smallest_updates: list[tuple[str, float]]


def offenders(history: History, step: int | None = None) -> Offenders:
    """What the summary columns of that step (the last one by default) say."""
    steps = history.steps("summary")
    if step is None and len(steps):
        step = int(steps[-1])
    row = {} if step is None else history.row(step)
    names = list(dict.fromkeys(p.name for model in history.info.models for p in model.parameters))
    return Offenders(
        _named(row, "largest_gradient", "norm", names),
        _named(row, "smallest_update", "ratio", names),
    )


def _named(
    row: dict[Key, float], site: str, stat: str, names: list[str]
) -> list[tuple[str, float]]:
    found = []
    rank = 1
    while (place := row.get(Key("summary", f"{site}.{rank}", "parameter"))) is not None:
        found.append((names[int(place)], row[Key("summary", f"{site}.{rank}", stat)]))
        rank += 1
    return found
