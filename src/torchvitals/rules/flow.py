"""How gradients flow with depth: the weights' gradient RMS from input to output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchvitals.rules.run import Run
from torchvitals.rules.table import Array

FEWEST = 3
"""Layers from which a flow can be told."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Weights by depth, and the typical RMS of their gradients."""

    sites: list[str]
    rms: Array
    first: float
    last: float

    @property
    def ratio(self) -> float:
        """RMS at the input over RMS at the output."""
        return self.first / self.last if self.last > 0 else float("nan")

    @property
    def steady(self) -> float:
        """Rank correlation of the RMS with depth, −1 … 1."""
        ranks = np.argsort(np.argsort(self.rms)).astype(float)
        places = np.arange(len(ranks), dtype=float)
        if len(ranks) < FEWEST or np.ptp(ranks) == 0:
            return 0.0
        return float(np.corrcoef(ranks, places)[0, 1])


def gradient_flow(run: Run, num: int = 8, *, early: bool = False) -> Flow | None:
    """Over the last (or first) `num` measured steps; None with fewer than three weights."""
    return run.keep(f"flow {num} {early}", lambda: _flow(run, num, early=early))


def _flow(run: Run, num: int, *, early: bool) -> Flow | None:
    table = run.weights("gradient", "rms")
    if not table:
        return None
    typical = table.head(num).typical(num) if early else table.typical(num)
    chosen = [
        (site, float(value))
        for site, value in zip(table.sites, typical, strict=True)
        if np.isfinite(value) and not run.model.is_embedding(site)
    ]
    if len(chosen) < FEWEST:
        return None
    chosen.sort(key=lambda pair: run.model.depth(pair[0]))
    sites, rms = [site for site, _ in chosen], np.array([value for _, value in chosen])
    ends = max(1, len(rms) // 5)
    return Flow(sites, rms, float(np.median(rms[:ends])), float(np.median(rms[-ends:])))
