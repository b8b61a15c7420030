"""`Sink`: what rows are forwarded to. One file a tracker, one `write(row)` each.

A sink lives on a thread of its own (`outlet.py`): it may be slow, and what it raises is told once
and never reaches the training. It sees one row a step, of the columns that were chosen for it
(`choice.py`), what was not measured left out.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from torchvitals.record import Event, HistogramRow, MissingExtra, Row, RunInfo


class Sink:
    """Base of all sinks; only `write` must be there."""

    name: ClassVar[str] = "a sink"
    """What the user calls it."""
    patience_s: ClassVar[float] = 10.0
    """How long the end of a run waits for it to write what is left."""
    series: str | None = None
    """Columns to forward besides the usual ones: a regular expression, searched in `str(key)`."""

    def notice(self) -> None:
        """Called by `watch()` itself, on its thread: look whether the user has a run under way."""

    def open(self, info: RunInfo, folder: Path) -> None:
        """Begin: what the run is made of, and its folder. On the sink's thread."""

    def write(self, row: Row) -> None:
        """One step."""
        raise NotImplementedError

    def event(self, event: Event) -> None:
        """Something happened."""

    def histograms(self, row: HistogramRow) -> None:
        """Distributions of the chosen tensors."""

    def flush(self) -> None:
        """About once a second, after something was written."""

    def close(self, status: str) -> None:
        """The run ended: finished or failed."""


def need(module: str, *, extra: str) -> Any:
    """A tracker's package, or the pip line that brings it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(
            f"{package} is not installed ({error}). Install it with: "
            f"pip install 'torchvitals[{extra}]'"
        ) from error
