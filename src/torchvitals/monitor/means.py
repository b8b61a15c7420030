"""`Means`: metrics of activations that are plain means, of many outputs at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchvitals.monitor import metrics as m
from torchvitals.probes.activations import ActivationRaw, Activations
from torchvitals.probes.probe import Notes
from torchvitals.record import Key, is_missing
from torchvitals.stats import sums as s

MAX_PLANS = 64

Plan = list[list[str]]
"""For each metric, what the values of all lines are logged as."""


class Means:
    """Turns what the probe measured in a step into the metrics' values."""

    def __init__(self, probe: Activations, metrics: m.Metrics) -> None:
        self.probe = probe
        self._metrics = metrics
        self._plans: dict[tuple[int, ...], tuple[Sequence[list[int]], Plan | None]] = {}
        self._header: tuple[Key, ...] = ()
        self._columns: list[tuple[int, str]] = []

    def finish(self) -> dict[str, float]:
        """The step's values."""
        raw = self.probe.take()
        if not raw.parts:
            return {}
        plan = None if raw.lost else self._plan([lines for lines, _ in raw.parts], raw)
        if plan is None:
            return self._one_by_one(raw)
        sums = [measured.host().sums for _, measured in raw.parts]
        values = s.means(sums[0] if len(sums) == 1 else np.concatenate(sums)).tolist()
        return {key: value for keys in plan for key, value in zip(keys, values, strict=True)}

    def _plan(self, lists: list[list[int]], raw: ActivationRaw) -> Plan | None:
        """The usual step: every output once, and of each the same metrics."""
        key = tuple(map(id, lists))
        known = self._plans.get(key)
        if known is None:
            if len(self._plans) > MAX_PLANS:
                self._plans.clear()
            # The lists are kept too: their ids stay theirs.
            known = self._plans[key] = (lists, self._make_plan(lists, raw))
        return known[1]

    def _make_plan(self, lists: list[list[int]], raw: ActivationRaw) -> Plan | None:
        lines = [line for lines in lists for line in lines]
        names = self.probe.names(raw.num_sites)
        sites = [names[line] for line in lines]
        wanted = {tuple(self._names(site)) for site in sites}
        if len(set(lines)) < len(lines) or len(wanted) > 1:
            return None
        return [[f"{m.ACTIVATION}/{site}/{name}" for site in sites] for name in wanted.pop()]

    def _names(self, site: str) -> list[str]:
        return [x.name for x in self._metrics.of(m.ACTIVATION, site) if x.is_mean]

    def _one_by_one(self, raw: ActivationRaw) -> dict[str, float]:
        probe = self.probe
        values = probe.values([raw], Notes.of(1, 0))[0]
        if self._header is not probe.header:
            self._header = probe.header
            self._columns = [
                (place, f"{m.ACTIVATION}/{key.site}/{name}")
                for place, key in enumerate(probe.header)
                if key.stat == "mean"
                for name in self._names(key.site)
            ]
        found = values[[place for place, _ in self._columns]]
        pairs = zip(self._columns, found.tolist(), is_missing(found).tolist(), strict=True)
        return {name: value for (_, name), value, missing in pairs if not missing}
