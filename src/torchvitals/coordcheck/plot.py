"""The plot that μP users know: log-log over width, one line a step, the predicted slope dashed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchvitals.record import ConfigError, MissingExtra

if TYPE_CHECKING:
    from torchvitals.coordcheck.table import CoordinateTable

PANEL = (3.2, 2.3)
"""Inches of one panel, with what belongs to it."""
GUIDE = "predicted slope"
FOOT = 0.8
"""Inches below the panels, for the legend."""
MIN_DECADES = 1.0
"""A panel shows at least so much: what is flat must look flat."""


def figure_class() -> tuple[Any, Any]:
    """Figure and colour maps of matplotlib; MissingExtra without it."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "plotting needs matplotlib, which is not installed here. Install it with: "
            "pip install torchvitals[plots]"
        ) from error
    return Figure, colormaps


def check_path(path: str | PathLike[str]) -> None:
    """ConfigError where no plot could be written: an unknown ending, or no such folder."""
    figure_of, _ = figure_class()
    place = Path(path)
    ending, known = (
        place.suffix.lower().removeprefix("."),
        figure_of().canvas.get_supported_filetypes(),
    )
    if ending and ending not in known:  # without one matplotlib adds .png
        raise ConfigError(
            f"a plot can't be written as {str(place)!r}: matplotlib knows no .{ending}; use .png, "
            ".svg or .pdf"
        )
    if place.is_dir():
        raise ConfigError(f"the plot's file {str(place)!r} is a folder; name a file inside it")
    if not place.parent.is_dir():
        raise ConfigError(
            f"a plot can't be written as {str(place)!r}: there is no folder "
            f"{str(place.parent)!r}; make it first"
        )
    if not os.access(place if place.exists() else place.parent, os.W_OK):
        raise ConfigError(f"a plot can't be written as {str(place)!r}: that is read-only")


def plot(
    table: CoordinateTable,
    path: str | PathLike[str],
    *,
    predicted: float | Mapping[str, float],
    terms: Sequence[str],
    modules: str,
) -> None:
    """One row a module, one column a term. No global state of matplotlib is touched."""
    check_path(path)
    figure_of, colormaps = figure_class()
    names = [name for name in table.modules if re.match(modules, name)]
    if not names or not terms:
        raise ConfigError(f"no module's name matches {modules!r}; there are {table.modules}")
    width, height = PANEL[0] * len(terms), PANEL[1] * len(names) + FOOT
    figure = figure_of(figsize=(width, height))
    # Margins by hand: matplotlib's own layouts take a minute for a deep model.
    panels = figure.subplots(len(names), len(terms), squeeze=False)
    figure.subplots_adjust(
        left=0.6 / width, right=1 - 0.1 / width, top=1 - 0.3 / height, bottom=1.1 * FOOT / height,
        wspace=0.3, hspace=0.35,
    )  # fmt: skip
    colours = colormaps["viridis"](np.linspace(0.0, 0.9, len(table.steps)))
    for name, row in zip(names, panels, strict=True):
        for term, axes in zip(terms, row, strict=True):
            _panel(axes, table, name, term, colours)
            slope = _predicted(predicted, name)
            if term == "effective" and slope is not None:
                _guide(axes, table, name, term, slope)
            _limits(axes, table.widths)
            axes.set_title(f"{name}: {term.replace('_', ' ')}", fontsize="small")
            axes.tick_params(labelsize="x-small")
    for axes in panels[-1]:
        axes.set_xlabel("width", fontsize="small")
    lines = {line.get_label(): line for axes in panels.flat for line in axes.get_lines()}
    order = [text for step in table.steps if (text := f"step {step}") in lines]
    order += [GUIDE] if GUIDE in lines else []
    if order:
        figure.legend(
            [lines[text] for text in order], order, loc="lower center", ncols=6, fontsize="x-small"
        )
    figure.savefig(path)


def _panel(axes: Any, table: CoordinateTable, name: str, term: str, colours: Any) -> None:
    """Geometric means over seeds, and from the lowest to the highest a shade."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for step, colour in zip(table.steps, colours, strict=True):
        values = table.values(name, term, step)
        good = np.isfinite(values).all(axis=1) & (values > 0.0).all(axis=1)
        if not good.any():
            continue
        x, y = np.array(table.widths)[good], values[good]
        middle = np.exp(np.log(y).mean(axis=1))
        axes.plot(x, middle, marker="o", markersize=3, color=colour, label=f"step {step}")
        axes.fill_between(x, y.min(axis=1), y.max(axis=1), color=colour, alpha=0.15, linewidth=0)


def _guide(axes: Any, table: CoordinateTable, name: str, term: str, slope: float) -> None:
    """The predicted slope, through the middle of the last step's line."""
    values = table.values(name, term)
    good = np.isfinite(values).all(axis=1) & (values > 0.0).all(axis=1)
    if not good.any():
        return
    x = np.array(table.widths, dtype=float)
    level = np.log(values[good]).mean() - slope * np.log(x[good]).mean()
    axes.plot(x, np.exp(level + slope * np.log(x)), "--", color="0.4", linewidth=1, label=GUIDE)


def _limits(axes: Any, widths: Sequence[int]) -> None:
    """Ticks at the widths; an empty panel says that it is."""
    from matplotlib.ticker import LogLocator

    axes.set_xticks(widths, labels=[str(width) for width in widths])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.minorticks_off()
    axes.set_xlim(widths[0] / 1.2, widths[-1] * 1.2)
    if not axes.get_lines():
        axes.set_yticks([])
        axes.text(0.5, 0.5, "nothing above zero", ha="center", transform=axes.transAxes, size=7)
        return
    low, high = np.log10(axes.get_ylim())
    room = max(MIN_DECADES - (high - low), 0.0) / 2
    axes.set_ylim(10 ** (low - room), 10 ** (high + room))


def _predicted(predicted: float | Mapping[str, float], name: str) -> float | None:
    if not isinstance(predicted, Mapping):
        return float(predicted)
    return next((slope for regex, slope in predicted.items() if re.fullmatch(regex, name)), None)
