"""`column_table`: columns that no ranking fits (scalars, summaries, learning rates), as stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from torchvitals.record import SCALAR, Key
from torchvitals.store import History
from torchvitals.views.layers import SPARK_WIDTH
from torchvitals.views.sparkline import drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """One column over time."""

    key: Key
    spark: str
    first: float
    last: float
    last_step: int
    low: float | None
    """Lowest finite value, and where."""
    low_step: int | None
    high: float | None
    num_values: int
    num_bad: int
    """Values that are NaN or Inf, and the first of them."""
    first_bad_step: int | None

    @property
    def name(self) -> str:
        """Without the kind: ``loss``, ``gradient_norm/median``."""
        kind, site, stat = self.key
        # A category's number is its loss.
        alone = kind == SCALAR or (kind, stat) == ("category", "loss")
        return site if alone else f"{site}/{stat}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTable:
    """The columns of one kind."""

    kind: str
    title: str
    lines: list[Trend]
    num_columns: int
    notes: list[str] = field(default_factory=list)
    """One a line, or none at all."""


TITLES = {
    "scalar": "Logged numbers",
    "summary": "Summary",
    "optimizer": "Parameter groups",
    "clock": "Time of a step",
    "speed": "Throughput",
    "machine": "Machine",
    "eval": "Evaluations",
    "epoch": "Means of the epochs",
    "category": "Loss by category",
    "probe": "Probes of plugins",
    "noise": "Gradient noise scale",
    "rank": "Ranks",
    "attention": "Attention",
    "input": "Inputs of the model",
    "output": "Outputs of the model",
    "criterion": "Loss functions",
    "amp": "Gradient scaler",
    "gradient_before_clip": "Gradients before clipping",
    "activation_difference": "Activations, difference to the reference model",
    "parameter_difference": "Parameters, difference to the reference model",
}


def trend(
    history: History, key: Key, *, stop: int | None = None, spark_width: int = SPARK_WIDTH
) -> Trend | None:
    """A column up to (not including) step `stop`; None while nothing was measured."""
    steps, values = history.series(key, stop=stop)
    if not len(steps):
        return None
    finite = np.isfinite(values)
    lowest = int(np.argmin(np.where(finite, values, np.inf)))
    some = bool(finite.any())
    return Trend(
        key=key,
        spark=drawn(history, key, spark_width, stop=stop),
        first=float(values[0]),
        last=float(values[-1]),
        last_step=int(steps[-1]),
        low=float(values[lowest]) if some else None,
        low_step=int(steps[lowest]) if some else None,
        high=float(values[finite].max()) if some else None,
        num_values=len(steps),
        num_bad=int(np.count_nonzero(~finite)),
        first_bad_step=int(steps[int(np.argmin(finite))]) if not finite.all() else None,
    )


def column_table(
    history: History,
    kind: str,
    *,
    step: int | None = None,
    stats: Sequence[str] = (),
    site: str | None = None,
    top: int | None = None,
    only: Sequence[str] = (),
    spark_width: int = SPARK_WIDTH,
) -> ColumnTable | None:
    """All columns of a kind in stored order; `only` those stats. None when there are none."""
    wanted = set(stats) or set(only)
    keys = [key for key in history.keys(kind, site) if not wanted or key.stat in wanted]
    stop = None if step is None else step + 1
    found = (trend(history, key, stop=stop, spark_width=spark_width) for key in keys[:top])
    lines = [line for line in found if line is not None]
    if not lines:
        return None
    return ColumnTable(kind=kind, title=TITLES.get(kind, kind), lines=lines, num_columns=len(keys))
