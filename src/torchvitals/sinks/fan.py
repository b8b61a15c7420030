"""`Fan`: hears what goes into the store and forwards it to the sinks, each on its own thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from torchvitals.record import Event, HistogramRow, Row, RunInfo
from torchvitals.sinks.choice import Choice
from torchvitals.sinks.outlet import Outlet
from torchvitals.sinks.sink import Sink


class Fan:
    """A listener of the recorder."""

    name = "sinks"
    closes_last = True
    """What other listeners say while they close is heard."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        info: RunInfo,
        folder: Path,
        tell: Callable[[str, str], None] = lambda name, text: None,
    ) -> None:
        parameters = list(dict.fromkeys(p.name for model in info.models for p in model.parameters))
        choices = [Choice(parameters, getattr(sink, "series", None)) for sink in sinks]
        self.outlets = [
            Outlet(sink, choice, info, folder, tell)
            for sink, choice in zip(sinks, choices, strict=True)
        ]
        self._closed = False
        for outlet in self.outlets:
            outlet.start()

    def rows(self, rows: Sequence[Row]) -> None:
        """Rows of finished steps."""
        for outlet in self.outlets:
            for row in rows:
                outlet.row(row)

    def histograms(self, row: HistogramRow) -> None:
        """Distributions."""
        for outlet in self.outlets:
            outlet.histograms(row)

    def event(self, event: Event) -> None:
        """Something happened."""
        for outlet in self.outlets:
            outlet.event(event)

    def tick(self) -> None:
        """A second has passed."""
        for outlet in self.outlets:
            outlet.tick()

    def close(self, status: str) -> None:
        """Let every sink write what is left, all at the same time."""
        if self._closed:
            return
        self._closed = True
        begun = time.monotonic()
        for outlet in self.outlets:
            outlet.end(status)
        for outlet in self.outlets:
            outlet.wait(begun + outlet.patience_s - time.monotonic())
