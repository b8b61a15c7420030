"""Names at the left, facts at the right: the two grids summaries are made of, and how lines break.

Nothing wraps by itself: facts are put on lines that fit, and words at the end are chosen to fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group
from rich.table import Table
from rich.text import Text

from torchvitals.views import words

NAME_WIDTH = 13
GAP = 2
LONGEST_NAME = 22
"""Names of logged numbers are the user's; longer ones lose their beginning."""

Fact = tuple[str, str | Text]


@dataclass(frozen=True, slots=True)
class TrendLine:
    """A number over time: its name, drawn, first → last, and what to say of it."""

    name: str
    spark: str
    ends: str
    texts: tuple[str, ...] = ("",)
    """The first that fits is taken, else the last is cut."""


def paragraphs(title: Text, *grids: Table | None) -> Group:
    """The grids that there are under a title, an empty line before each."""
    there = (grid for grid in grids if grid is not None)
    return Group(title, *(part for grid in there for part in (Text(""), grid)))


def room(width: int) -> int:
    """Columns beside the names."""
    return width - NAME_WIDTH - GAP


def fact_grid(facts: Iterable[Fact], width: int) -> Table | None:
    """A fact a line, cut at the right where it does not fit; None without facts."""
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=NAME_WIDTH)
    grid.add_column(no_wrap=True, overflow="ellipsis", max_width=room(width))
    for name, fact in facts:
        grid.add_row(name, fact)
    return grid if grid.row_count else None


def trend_grid(lines: Sequence[TrendLine], width: int) -> Table | None:
    """Only the words at the end may be cut; None without lines."""
    if not lines:
        return None
    names = [words.tail(line.name, LONGEST_NAME) for line in lines]
    sizes = [
        max(NAME_WIDTH, *map(len, names)),
        max(len(line.spark) for line in lines),
        max(len(line.ends) for line in lines),
    ]
    grid = Table.grid(padding=(0, GAP, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=sizes[0])
    for size in sizes[1:]:
        grid.add_column(no_wrap=True, min_width=size)
    left = max(width - sum(sizes) - GAP * len(sizes), 1)
    grid.add_column(no_wrap=True, overflow="ellipsis", style="dim", max_width=left)
    for name, line in zip(names, lines, strict=True):
        text = next((one for one in line.texts if len(one) <= left), line.texts[-1])
        grid.add_row(name, line.spark, line.ends, text)
    return grid


def spread(name: str, parts: Sequence[str | Text], width: int, between: str = " · ") -> list[Fact]:
    """Parts on as few lines as they fit on, the name beside the first."""
    lines: list[Text] = []
    for part in parts:
        piece = part if isinstance(part, Text) else Text(part)
        if lines and len(lines[-1]) + len(between) + len(piece) <= room(width):
            lines[-1] = Text.assemble(lines[-1], between, piece)
        else:
            lines.append(Text() + piece)
    return [(name if not at else "", line) for at, line in enumerate(lines)]
