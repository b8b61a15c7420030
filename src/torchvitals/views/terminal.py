"""Views as text for a terminal: calm, aligned, readable without colour.

Colour only repeats what a word says already. Everything adapts to the width: columns of numbers are
dropped from the right, names lose their beginning, nothing wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isfinite

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from torchvitals.views import words
from torchvitals.views.columns import ColumnTable, Trend
from torchvitals.views.layers import LayerTable
from torchvitals.views.listing import RunLine

PLAIN_WIDTH = 100
"""Columns where the output is no terminal and does not say how wide it is."""
MIN_NAME = 24
"""Names get at least this many columns before numbers are shown beside them."""

GAP = 2
STATUS_STYLES = {"running": "cyan", "finished": "green", "failed": "red", "died": "red"}
LABELS = {
    "zero_frac": "zeros",
    "dead_frac": "dead",
    "saturated_frac": "satur.",
    "vs_median": "vs median",
    "g2_over_v_rms": "√(g²/v)",
    "sqrt_v_over_eps": "√v/ε",
    "lr_ratio": "Δw/g",
}


class Screen(Console):
    """A console that lets a broken pipe through to whoever started it, and never wraps at 80."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        # Names of layers may look like markup or emoji: "[root module]", "a:b:c".
        super().__init__(
            stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False
        )
        if width is None and not self.is_terminal and "COLUMNS" not in self._environ:
            self.width = PLAIN_WIDTH

    def show(self, *parts: RenderableType) -> None:
        """Print; where lines are no screen lines, without the blanks that fill them up."""
        if self.is_terminal:
            self.print(*parts, sep="\n")
            return
        with self.capture() as captured:
            self.print(*parts, sep="\n")
        lines = captured.get().splitlines()
        self.file.write("".join(f"{line.rstrip()}\n" for line in lines))

    def on_broken_pipe(self) -> None:
        """Called inside rich's handler: the error goes on its way."""
        raise  # noqa: PLE0704


def value_text(stat: str, value: float | None) -> str:
    """A value the way its stat is read."""
    if stat == "vs_median":
        return words.times(value)
    if stat.endswith("_frac") or stat == "mfu":
        return words.share(value)
    if value is not None and isfinite(value):
        if stat.endswith("_bytes"):
            return words.size(value)
        if stat.endswith("_s") and not stat.endswith("per_s"):
            return words.seconds(value)
    return words.number(value)


def layers_text(table: LayerTable, width: int) -> RenderableType:
    """The worst layers of a kind."""
    asked = "" if table.asked_step is None else f" (nothing measured at {table.asked_step})"
    head = Text.assemble(
        (table.title, "bold"), f" at step {words.count(table.step)}{asked}, worst first"
    )
    about = Text(table.worst, style="dim", overflow="ellipsis", no_wrap=True)
    notes = [line.note for line in table.lines]
    cells = {
        stat: [value_text(stat, line.values[stat]) for line in table.lines] for stat in table.stats
    }
    fixed = [("", [line.spark for line in table.lines])]
    if any(notes):
        fixed.append(("", notes))
    names = [line.site for line in table.lines]
    stats, room = fit(names, cells, fixed, width)
    grid = _grid()
    grid.add_column("layer", no_wrap=True)
    grid.add_column(f"{label(table.lead)} over time", no_wrap=True)
    for stat in stats:
        grid.add_column(label(stat), justify="right", no_wrap=True)
    if any(notes):
        grid.add_column("", no_wrap=True, style="yellow")
    for index, line in enumerate(table.lines):
        numbers = [_marked(cells[stat][index]) for stat in stats]
        extra = [line.note] if any(notes) else []
        grid.add_row(words.tail(line.site, room), _marked(line.spark), *numbers, *extra)
    more = table.num_layers - len(table.lines)
    parts: list[RenderableType] = [head, about, grid]
    if more:
        parts.append(Text(f"  and {words.count(more)} more (--top {table.num_layers})", "dim"))
    return Group(*parts)


def columns_text(table: ColumnTable, width: int) -> RenderableType:
    """Columns in the order of the table."""
    names = [line.name for line in table.lines]
    cells = {
        "last": [value_text(line.key.stat, line.last) for line in table.lines],
        "first": [value_text(line.key.stat, line.first) for line in table.lines],
        "lowest": [value_text(line.key.stat, line.low) for line in table.lines],
        "highest": [value_text(line.key.stat, line.high) for line in table.lines],
    }
    fixed = [("over time", [line.spark for line in table.lines])]
    if table.notes:
        fixed.append(("", table.notes))
    chosen, room = fit(names, cells, fixed, width)
    grid = _grid()
    grid.add_column("column", no_wrap=True)
    grid.add_column("over time", no_wrap=True)
    for name in chosen:
        grid.add_column(name, justify="right", no_wrap=True)
    if table.notes:
        grid.add_column("", no_wrap=True, style="dim")
    for index, line in enumerate(table.lines):
        numbers = [_marked(cells[name][index]) for name in chosen]
        extra = [table.notes[index]] if table.notes else []
        grid.add_row(words.tail(line.name, room), _marked(line.spark), *numbers, *extra)
    parts: list[RenderableType] = [Text(table.title, "bold"), grid]
    more = table.num_columns - len(table.lines)
    if more > 0:
        parts.append(Text(f"  and {words.count(more)} more (--top {table.num_columns})", "dim"))
    return Group(*parts)


def listing_text(lines: Sequence[RunLine], width: int) -> RenderableType:
    """The runs of a folder, and under them what is wrong with broken ones."""
    cells = {
        "steps": [_or_dash(line.steps, words.count) for line in lines],
        "loss": [words.number(line.loss) for line in lines],
        "started": [_or_dash(line.age_s, words.ago) for line in lines],
        "took": [words.duration(line.duration_s) for line in lines],
        "size": [words.size(line.size_bytes) for line in lines],
    }
    if any(line.finding for line in lines):
        cells = {"finding": [line.finding or "" for line in lines], **cells}
    sparks = [line.loss_spark for line in lines]
    fixed = [("status", [line.status for line in lines]), ("loss over time", sparks)]
    chosen, room = fit([line.name for line in lines], cells, fixed, width)
    grid = _grid()
    grid.add_column("run", no_wrap=True)
    grid.add_column("status", no_wrap=True)
    for name in chosen:
        grid.add_column(name, justify="right", no_wrap=True)
        if name == "loss":
            grid.add_column("loss over time", no_wrap=True)
    for index, line in enumerate(lines):
        row: list[str | Text] = []
        for name in chosen:
            row.append(_marked(cells[name][index]))
            if name == "loss":
                row.append(_marked(line.loss_spark))
        status = Text(line.status, STATUS_STYLES.get(line.status, "red"))
        grid.add_row(words.tail(line.name, room), status, *row)
    parts: list[RenderableType] = [grid]
    broken = [line for line in lines if line.problem is not None]
    if broken:
        parts += [Text(""), Text("Broken files", "bold")]
        problems = _grid()
        problems.show_header = False
        problems.add_column(no_wrap=True)
        problems.add_column()
        for line in broken:
            problems.add_row(f"  {words.tail(line.name, room)}", line.problem)
        parts.append(problems)
    return Group(*parts)


def fit(
    names: Sequence[str],
    cells: dict[str, list[str]],
    fixed: Iterable[tuple[str, list[str]]],
    width: int,
) -> tuple[list[str], int]:
    """Which columns of cells fit beside the names, and how wide the names may be."""
    left = width - sum(max(map(len, (head, *texts)), default=0) + GAP for head, texts in fixed)
    wanted = min(max(map(len, names), default=0), MIN_NAME)
    chosen: list[str] = []
    for stat, texts in cells.items():
        needed = max(map(len, (label(stat), *texts))) + GAP
        if left - needed < wanted:
            break
        chosen.append(stat)
        left -= needed
    return chosen, max(left, MIN_NAME // 2)


def label(stat: str) -> str:
    """A short heading for a stat."""
    return LABELS.get(stat, stat)


def trend_words(trend: Trend) -> str:
    """First and last: ``4.62 → 1.93``."""
    return f"{words.number(trend.first)} → {words.number(trend.last)}"


def _marked(text: str) -> Text:
    """Not finite: in red, besides being spelled out."""
    marked = Text(text)
    marked.highlight_regex(r"×+(?![\d.N-])|NaN|-?Inf", "bold red")
    return marked


def _grid() -> Table:
    return Table(
        box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim", show_edge=False
    )


def _or_dash(value: float | None, spell: Callable[[int], str]) -> str:
    return words.NOT_MEASURED if value is None else spell(int(value))
