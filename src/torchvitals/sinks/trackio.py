"""`Trackio`: Hugging Face's local-first tracker."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from torchvitals.record import Row, RunInfo
from torchvitals.sinks.layout import shown, tag
from torchvitals.sinks.sink import Sink, need


class Trackio(Sink):
    """A run of `project` in Trackio's own folder (``trackio show``)."""

    name: ClassVar[str] = "Trackio"
    patience_s: ClassVar[float] = 20.0

    def __init__(
        self, project: str = "torchvitals", *, series: str | None = None, **init: Any
    ) -> None:
        """`init`: further arguments of ``trackio.init()``, for instance `space_id`."""
        self.series = series
        self._project = project
        self._init = init
        self._run: Any = None

    def open(self, info: RunInfo, folder: Path) -> None:
        """Begin a run; "current" only in this thread, so that one of the user's stays theirs."""
        trackio = need("trackio", extra="trackio")
        arguments = {"project": self._project, "name": info.name, "config": info.config}
        self._run = trackio.init(**{**arguments, "embed": False, **self._init})

    def write(self, row: Row) -> None:
        """One step."""
        numbers = zip(row.header, row.values.tolist(), strict=True)
        self._run.log({tag(key): shown(key, value) for key, value in numbers}, step=row.step)

    def close(self, status: str) -> None:
        """End the run."""
        if self._run is not None:
            self._run.finish()
