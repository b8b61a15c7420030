"""`vitals show`: one run: a summary, then its layers, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from torchvitals.cli.options import (
    echo_json,
    json_option,
    kind_option,
    run_argument,
    site_option,
    stat_option,
)

if TYPE_CHECKING:
    from torchvitals.store import History
    from torchvitals.views.columns import ColumnTable
    from torchvitals.views.layers import LayerTable
    from torchvitals.views.terminal import Screen

LAYERS = ("update", "gradient", "activation", "parameter")
"""Shown when no kind is asked for."""

EPILOG = """\b
Examples:
  vitals show gpt                               the run runs/gpt
  vitals show runs/gpt --kind gradient --top 20
  vitals show runs/gpt --step 500               as it was at step 500
  vitals show runs/gpt --site 'blocks\\.3' --stat absmax --stat p99
  vitals show runs/gpt --json | jq .tables
"""


@click.command("show", epilog=EPILOG)
@run_argument
@click.option("--step", type=click.IntRange(min=0), help="As of this step instead of the last.")
@kind_option
@stat_option
@click.option(
    "--top", type=click.IntRange(min=1), default=6, show_default=True, help="Layers a table."
)
@site_option
@json_option
def command(
    run: str,
    *,
    step: int | None,
    kinds: tuple[str, ...],
    stats: tuple[str, ...],
    top: int,
    site: str | None,
    as_json: bool,
) -> None:
    """Show a run: how it went, and its layers with the worst first.

    RUN is a run's folder, its file, or a name under ./runs. What counts as worst stands above each
    table. With --stat the tables are ordered by that stat instead; absmax and percentiles (p50,
    p99.9) can be asked for as well. The drawn lines show a stat over the whole run; × stands for a
    stretch with a NaN or Inf in it.
    """
    from torchvitals.cli.find_run import find_run
    from torchvitals.store import open_run
    from torchvitals.views.summary import summarize

    with open_run(find_run(run)) as history:
        if as_json:
            summary = None if kinds else summarize(history, step=step)
            tables = make_tables(history, kinds, step=step, stats=stats, site=site, top=top)
            echo_json({"summary": summary, "tables": tables})
            return
        from torchvitals.views.terminal import Screen

        screen = Screen()
        if not kinds:
            print_summary(screen, history, step=step)
        tables = make_tables(history, kinds, step=step, stats=stats, site=site, top=top)
        print_tables(screen, tables, gap=not kinds)
        if not tables and not kinds and (site or stats):
            what = f"stats {', '.join(stats)}" if stats else "layers"
            where = f" at sites that match {site!r}" if site else ""
            screen.show(f"No {what} were measured{where}; without --site and --stat all are shown.")
        missing = [kind for kind in kinds if kind not in {table.kind for table in tables}]
        if missing:
            there = dict.fromkeys(key.kind for key in history.keys())
            what = f" at sites that match {site!r}" if site else ""
            screen.show(
                f"Nothing of kind {', '.join(missing)} was measured{what}; "
                f"this run has {', '.join(there) or 'nothing yet'}."
            )


def make_tables(
    history: History,
    kinds: Sequence[str],
    *,
    step: int | None = None,
    stats: Sequence[str] = (),
    site: str | None = None,
    top: int | None = None,
) -> list[LayerTable | ColumnTable]:
    """The tables of these kinds (none given: of the layers), those without lines left out."""
    from torchvitals.views.categories import category_table
    from torchvitals.views.columns import column_table
    from torchvitals.views.layers import RANKINGS, layer_table

    tables: list[LayerTable | ColumnTable | None] = []
    for kind in kinds or LAYERS:
        known = [stat for stat in stats if kinds or _has(history, kind, stat)]
        if stats and not known:
            continue
        if kind == "optimizer" and not stats:
            tables.append(
                column_table(history, kind, step=step, site=site, only=("lr", "weight_decay"))
            )
        if kind == "category" and not stats:
            tables.append(category_table(history, step=step, site=site, top=top))
        elif kind in RANKINGS:
            tables.append(layer_table(history, kind, step=step, stats=known, site=site, top=top))
        else:
            tables.append(column_table(history, kind, step=step, stats=known, site=site))
    return [table for table in tables if table is not None]


def _has(history: History, kind: str, stat: str) -> bool:
    """Whether a kind has that stat, or can compute it."""
    stored = bool(history.keys(kind, stat=stat))
    return stored or bool(history.matrix(kind, stat, start=0, stop=0).sites)


def print_summary(screen: Screen, history: History, *, step: int | None = None) -> None:
    """What the run is and how it went."""
    from torchvitals.views.summary import summarize
    from torchvitals.views.summary_text import summary_text

    screen.show(summary_text(summarize(history, step=step), screen.width))


def print_tables(
    screen: Screen, tables: Sequence[LayerTable | ColumnTable], *, gap: bool = True
) -> None:
    """One table after the other, an empty line between them."""
    from torchvitals.views.layers import LayerTable
    from torchvitals.views.terminal import columns_text, layers_text

    for table in tables:
        if gap:
            screen.show("")
        gap = True
        if isinstance(table, LayerTable):
            screen.show(layers_text(table, screen.width))
        else:
            screen.show(columns_text(table, screen.width))
