"""`difference`: two runs of one training beside each other, up to the last step both have."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchvitals.diagnosis import Diagnosis
from torchvitals.record import Key, Severity
from torchvitals.store import History
from torchvitals.views import words
from torchvitals.views.listing import loss_key
from torchvitals.views.sparkline import sparkline

SPARK_WIDTH = 16
PATH_WIDTH = 28
SAME = 0.005
"""Less than half a per cent is no difference."""
TAIL_FRAC = 0.1
"""A single loss is noise: what is compared is the mean of this last part of the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two runs."""

    path: Path
    status: str
    loss: float | None
    """Mean of the last steps that both runs have."""
    loss_spark: str
    """Drawn on the scale of both."""
    findings: tuple[str, ...]
    """Names of warnings and errors, the worst first."""
    num_notes: int
    update_ratio: float | None
    """Of the layer in question, at its last measured step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What became of a training after a change."""

    step: int
    """Both are looked at up to this step."""
    site: str | None
    """The layer in question."""
    before: Side
    after: Side

    @property
    def loss_change_frac(self) -> float | None:
        """-0.2: the loss is a fifth lower after the change."""
        old, new = self.before.loss, self.after.loss
        if old is None or new is None or not (isfinite(old) and isfinite(new)) or old == 0:
            return None
        return new / old - 1


def difference(
    before: tuple[History, Diagnosis], after: tuple[History, Diagnosis], *, site: str | None = None
) -> Difference:
    """Two runs with what was found in them; `site` is a layer to look at in both."""
    histories = [history for history, _ in (before, after)]
    step = min(history.last_step or 0 for history in histories)
    losses = [_losses(history, step) for history in histories]
    lines = [_thinned(values) for values in losses]
    drawn = sparkline([value for line in lines for value in line])
    sparks = (drawn[: len(lines[0])], drawn[len(lines[0]) :])
    sides = [
        Side(
            path=history.path.parent,
            status=history.status,
            loss=_tail(values),
            loss_spark=spark,
            findings=tuple(one.name for one in found.findings if one.severity is not Severity.INFO),
            num_notes=sum(one.severity is Severity.INFO for one in found.findings),
            update_ratio=_ratio(history, site, step),
        )
        for (history, found), values, spark in zip((before, after), losses, sparks, strict=True)
    ]
    return Difference(step=step, site=site, before=sides[0], after=sides[1])


def difference_text(one: Difference, *, names: tuple[str, str]) -> RenderableType:
    """A table of both, and what it comes to in one line."""
    grid = Table(
        box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim", show_edge=False
    )
    for heading in ("", *names, ""):
        grid.add_column(heading, no_wrap=True)
    sides = one.before, one.after
    change = one.loss_change_frac
    said = Text("" if change is None or abs(change) < SAME else _signed(change), "bold")
    grid.add_row("  loss", *(words.number(side.loss) for side in sides), said)
    grid.add_row("  loss over time", *(side.loss_spark for side in sides))
    grid.add_row("  findings", *(_found(side) for side in sides))
    if one.site is not None:
        ratios = (words.number(side.update_ratio) for side in sides)
        grid.add_row("  update ratio", *ratios, one.site)
    grid.add_row("  run", *(words.tail(str(side.path), PATH_WIDTH) for side in sides))
    return Group(Text(f"The difference after {words.plural(one.step, 'step')}", "bold"), grid)


def verdict(one: Difference) -> str:
    """The difference in a line."""
    old, new, change = one.before.loss, one.after.loss, one.loss_change_frac
    if change is None:
        return "The losses of the two runs can't be compared."
    still = [name for name in one.before.findings if name in one.after.findings]
    over = f" Still there: {', '.join(still)}." if still else ""
    steps = words.plural(one.step, "step")
    if abs(change) < SAME:
        return f"The loss is the same after {steps}.{over}"
    way = "lower" if change < 0 else "higher"
    percent = words.percent(abs(change))
    return (
        f"The loss is {percent} {way} after the same {steps}: {words.number(new)} instead of "
        f"{words.number(old)}.{over}"
    )


def _losses(history: History, stop: int) -> list[float]:
    key = loss_key(history)
    return [] if key is None else history.series(key, stop=stop + 1).values.tolist()


def _thinned(values: list[float]) -> list[float]:
    """At most `SPARK_WIDTH` means; a NaN stays one."""
    parts = np.array_split(np.asarray(values), min(SPARK_WIDTH, max(len(values), 1)))
    return [float(part.mean()) for part in parts if len(part)]


def _tail(values: list[float]) -> float | None:
    last = values[-max(1, round(TAIL_FRAC * len(values))) :]
    return float(np.mean(last)) if last else None


def _ratio(history: History, site: str | None, stop: int) -> float | None:
    if site is None or Key("update", site, "ratio") not in history.keys("update", stat="ratio"):
        return None
    values = history.series(Key("update", site, "ratio"), stop=stop + 1).values
    return float(values[-1]) if len(values) else None


def _found(side: Side) -> Text:
    notes = f" · {words.plural(side.num_notes, 'note')}" if side.num_notes else ""
    names = Text(", ".join(side.findings) or "none", "yellow" if side.findings else "green")
    return names.append(notes, "dim")


def _signed(change: float) -> str:
    return f"{'−' if change < 0 else '+'}{words.percent(abs(change))}"
