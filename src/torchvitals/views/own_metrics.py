"""Runs of a `ModuleMonitor`: their columns are metrics of the user's own, whatever their names.

The tables of layers know the statistics that `watch()` stores. Here a ranking is turned to the
metrics a run has instead, and the steps of such a run are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite

import numpy as np

from torchvitals.record import RunInfo
from torchvitals.record.key import TENSOR_KINDS
from torchvitals.store import History
from torchvitals.views.chosen_stats import by_stats
from torchvitals.views.ranking import Ranking, Values, Verdict

METRIC_KINDS = frozenset({"activation", "gradient", "parameter"})
"""Kinds of tables that metrics can be of."""
MEASURED_KINDS = TENSOR_KINDS | {
    *("activation_difference", "gradient_before_clip", "parameter_difference"),
}
"""Kinds whose columns say that tensors were measured."""


def from_module_monitor(info: RunInfo) -> bool:
    """Whether a ModuleMonitor wrote the run."""
    return bool(info.watch.get("module_monitor"))


def has_own_metrics(history: History, ranking: Ranking) -> bool:
    """Whether all there is of a kind are the user's metrics: every site is one they chose."""
    if ranking.kind not in METRIC_KINDS:
        return False
    return from_module_monitor(history.info) or not history.keys(ranking.kind, stat=ranking.mark)


def by_metrics(ranking: Ranking, metrics: Sequence[str]) -> Ranking:
    """The same kind with columns for these, what is not finite in any of them first.

    Then as the kind always is if the statistic that decides there is among them, else by the first.
    """
    usual = ranking.judged in metrics
    lead = next(stat for stat in (ranking.lead, ranking.judged, *metrics) if stat in metrics)
    base = ranking if usual else by_stats(ranking, [lead])
    return replace(
        base,
        lead=lead,
        stats=tuple(dict.fromkeys([lead, *ranking.stats, *metrics])),
        judge=_judge(base, metrics),
    )


def _judge(
    base: Ranking, metrics: Sequence[str]
) -> Callable[[dict[str, Values], RunInfo], dict[str, Verdict]]:
    def judge(sites: dict[str, Values], info: RunInfo) -> dict[str, Verdict]:
        verdicts = base.judge(sites, info)
        for site, values in sites.items():
            bad = [name for name in metrics if not isfinite(values.get(name, 0.0))]
            if bad:
                first, *rest = verdicts[site].score
                verdicts[site] = replace(
                    verdicts[site],
                    score=(max(first, len(bad)), *rest),
                    note=verdicts[site].note or f"{', '.join(bad)} not finite",
                )
        return verdicts

    return judge


def num_measured(history: History) -> int:
    """Steps at which tensors were measured. Each step of `watch()` has a summary."""
    summaries = len(history.steps("summary"))
    if summaries:
        return summaries
    kinds = {key.kind for key in history.keys()}
    found = [history.steps(kind) for kind in kinds & MEASURED_KINDS]
    if not found and from_module_monitor(history.info):
        found = [history.steps()]  # nothing but what was logged by name, as a coordinate check does
    return len(np.unique(np.concatenate(found))) if found else 0
