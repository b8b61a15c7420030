"""`layer_table`: the layers of one kind at one step, the worst first, with a line over time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchvitals.record import ConfigError, Key
from torchvitals.store import History
from torchvitals.views.activations import ACTIVATIONS
from torchvitals.views.chosen_stats import by_stats
from torchvitals.views.gradients import GRADIENTS
from torchvitals.views.optimizer import OPTIMIZER
from torchvitals.views.own_metrics import by_metrics, has_own_metrics
from torchvitals.views.parameters import PARAMETERS
from torchvitals.views.ranking import Ranking, Values
from torchvitals.views.sparkline import drawn
from torchvitals.views.updates import UPDATES

RANKINGS = {
    ranking.kind: ranking for ranking in (UPDATES, GRADIENTS, ACTIVATIONS, PARAMETERS, OPTIMIZER)
}
SPARK_WIDTH = 16
MARKS = 4
"""Layers that are asked at which steps they were measured: almost always all at the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLine:
    """One layer."""

    site: str
    spark: str
    values: dict[str, float | None]
    """Of the table's stats; None where nothing was measured."""
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """The worst layers of one kind."""

    kind: str
    title: str
    step: int
    """The measured step the values are of."""
    asked_step: int | None
    """The step that was asked for, if it is another one."""
    worst: str
    lead: str
    stats: tuple[str, ...]
    lines: list[LayerLine]
    num_layers: int
    """Of which `lines` are the first."""


def layer_table(
    history: History,
    kind: str,
    *,
    step: int | None = None,
    stats: Sequence[str] = (),
    site: str | None = None,
    top: int | None = None,
    spark_width: int = SPARK_WIDTH,
) -> LayerTable | None:
    """The table of a kind; None when nothing of that kind was measured (at sites like that)."""
    ranking = RANKINGS[kind]
    own = has_own_metrics(history, ranking)
    if stats:
        ranking = by_stats(ranking, stats)
    elif own and (metrics := list(dict.fromkeys(key.stat for key in history.keys(kind)))):
        ranking = by_metrics(ranking, metrics)
    at = measured_step(history, kind, step, mark="" if own or stats else ranking.mark)
    if at is None:
        return None
    sites = _values(history, ranking, at, site, stats, own=own)
    if not sites:
        return None
    verdicts = ranking.judge(sites, history.info)
    ordered = sorted(sites, key=lambda name: verdicts[name].score, reverse=True)
    shown = ordered if top is None else ordered[:top]
    lines = []
    for name in shown:
        known = {**sites[name], **verdicts[name].extra}
        lines.append(
            LayerLine(
                site=name,
                spark=_spark(history, Key(kind, name, ranking.lead), spark_width),
                values={stat: known.get(stat) for stat in ranking.stats},
                note=verdicts[name].note,
            )
        )
    return LayerTable(
        kind=kind,
        title=ranking.title,
        step=at,
        asked_step=step if step != at else None,
        worst=ranking.worst,
        lead=ranking.lead,
        stats=_measured_stats(ranking.stats, lines, keep=bool(stats)),
        lines=lines,
        num_layers=len(sites),
    )


def measured_step(history: History, kind: str, step: int | None, *, mark: str = "") -> int | None:
    """The last step of that kind, or the last one not after `step` (else the first).

    `mark`: a stat that must be there: learning rates are of every step, moments of some.
    """
    marked = history.keys(kind, stat=mark)[:MARKS] if mark else []
    if marked:
        steps = np.unique(np.concatenate([history.series(key).steps for key in marked]))
    else:
        steps = history.steps(kind)
    if not len(steps):
        return None
    if step is None:
        return int(steps[-1])
    before = steps[steps <= step]
    return int(before[-1]) if len(before) else int(steps[0])


def _values(
    history: History,
    ranking: Ranking,
    at: int,
    site: str | None,
    stats: Sequence[str],
    *,
    own: bool,
) -> dict[str, Values]:
    """Stat → value of every layer at that step, in stored order."""
    keys = history.keys(ranking.kind, site)
    # A pattern may name subtrees (modules that are no layers) on purpose.
    chosen = {key.site for key in keys} if own else _layers(keys, ranking.mark, stats)
    if not chosen and site is not None:
        chosen = {key.site for key in keys}
    sites: dict[str, Values] = {key.site: {} for key in keys if key.site in chosen}
    for key, value in history.row(at).items():
        if key.kind == ranking.kind and key.site in sites:
            sites[key.site][key.stat] = value
    stored = {key.stat for key in keys}
    for stat in stats:
        if stat not in stored:
            _add_computed(history, ranking.kind, stat, at, sites)
    if own and stats:
        # A metric may be of a few sites only: the others have nothing to show.
        having = {name: known for name, known in sites.items() if known.keys() & set(stats)}
        return having or sites
    return sites


def _layers(keys: Sequence[Key], mark: str, stats: Sequence[str]) -> set[str]:
    """The layers; where none of them has a stat that was asked for, what has it instead."""
    layers = {key.site for key in keys if key.stat == mark}
    asked = {key.site for key in keys if key.stat in stats}
    return layers if layers & asked or not asked else asked


def _add_computed(
    history: History, kind: str, stat: str, at: int, sites: dict[str, Values]
) -> None:
    found = history.matrix(kind, stat, start=at, stop=at + 1)
    if not found.sites:
        known = sorted({key.stat for key in history.keys(kind)})
        raise ConfigError(
            f"there is no stat {stat!r} of kind {kind} in this run; it has {', '.join(known)}, and "
            "absmax and percentiles (p50, p99 …) where there are min, max and histograms."
        )
    if len(found.steps):
        for name, value in zip(found.sites, found.values[0].tolist(), strict=True):
            if name in sites:
                sites[name][stat] = value


def _spark(history: History, key: Key, width: int) -> str:
    known = history.keys(key.kind, f"^{re.escape(key.site)}$", key.stat)
    computed = key.stat == "absmax" or re.fullmatch(r"p\d+(\.\d+)?", key.stat)
    return drawn(history, key, width) if known or computed else ""


def _measured_stats(
    stats: tuple[str, ...], lines: Sequence[LayerLine], *, keep: bool
) -> tuple[str, ...]:
    """Without the columns that would be empty, unless they were asked for."""
    return tuple(
        stat for stat in stats if keep or any(line.values[stat] is not None for line in lines)
    )
