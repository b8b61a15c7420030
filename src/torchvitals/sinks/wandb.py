"""`WandB`: Weights & Biases, online or offline."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

from torchvitals.record import HistogramRow, Row, RunInfo
from torchvitals.sinks.buckets import buckets
from torchvitals.sinks.layout import histogram_tag, shown, tag
from torchvitals.sinks.sink import Sink, need

log = logging.getLogger("torchvitals")

STEP = "vitals/step"
"""The x-axis of everything we log."""


class WandB(Sink):
    """Into the run that ``wandb.init()`` began before `watch()`, or into one of our own.

    In your run our numbers stand under ``vitals/`` and ride along with the next row you log: your
    steps stay as they are, and when you log more seldom than we measure, the newest values count.
    A run of our own is offline (``wandb sync`` uploads it later) unless you are logged in or `mode`
    or ``WANDB_MODE`` says otherwise. It never asks anything.
    """

    name: ClassVar[str] = "W&B"
    patience_s: ClassVar[float] = 45.0

    def __init__(
        self,
        project: str | None = None,
        *,
        mode: str | None = None,
        series: str | None = None,
        **init: Any,
    ) -> None:
        """`init`: further arguments of ``wandb.init()``."""
        self.series = series
        self._project = project
        self._mode = mode
        self._init = init
        self._wandb: Any = None
        self._run: Any = None
        self._guest = False
        """The run is the user's."""
        self._waiting: dict[str, Any] = {}

    def notice(self) -> None:
        """Take the user's run, if there is one."""
        self._run = getattr(sys.modules.get("wandb"), "run", None)
        self._guest = self._run is not None

    def open(self, info: RunInfo, folder: Path) -> None:
        """Begin a run, unless there is one."""
        self._wandb = need("wandb", extra="wandb")
        if not self._guest:
            arguments = {"project": self._project, "name": info.name, "config": info.config}
            # What the program prints is not ours to catch; a table at the end not ours to print.
            quiet = self._wandb.Settings(console="off", quiet=True, silent=True)
            ours = {"mode": self._chosen_mode(), "dir": str(folder), "reinit": "create_new"}
            everything = {**arguments, **ours, "settings": quiet, **self._init}
            self._run = self._wandb.init(**everything)
        prefix = "vitals/*" if self._guest else "*"
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric(prefix, step_metric=STEP)

    def write(self, row: Row) -> None:
        """One step."""
        numbers = zip(row.header, row.values.tolist(), strict=True)
        self._log(row.step, {tag(key): shown(key, value) for key, value in numbers})

    def histograms(self, row: HistogramRow) -> None:
        """Distributions, bucket for bucket; they go with the next step that is written."""
        for (kind, site), counts in zip(row.sites, row.counts, strict=True):
            found = buckets(counts)
            if found is not None:
                both = (found.counts.tolist(), found.edges.tolist())
                drawn = self._wandb.Histogram(np_histogram=both)
                self._waiting[histogram_tag(kind, site)] = drawn

    def close(self, status: str) -> None:
        """End the run, if it is ours."""
        if not self._guest and self._run is not None:
            self._run.finish(exit_code=0 if status == "finished" else 1)

    def _log(self, step: int, numbers: dict[str, Any]) -> None:
        waiting, self._waiting = self._waiting, {}
        found = {**numbers, **waiting}
        if self._guest:
            found = {f"vitals/{name}": value for name, value in found.items()}
        self._run.log({STEP: step, **found}, commit=not self._guest)

    def _chosen_mode(self) -> str | None:
        """Online only where that is asked for, or where nobody must be asked for a key."""
        if self._mode is not None or "WANDB_MODE" in os.environ:
            return self._mode
        try:
            known = bool(self._wandb.login(prompt=False))
        except Exception:  # older versions would ask; an invalid key is as good as none
            known = "WANDB_API_KEY" in os.environ
        if known:
            return None
        log.warning(
            "torchvitals: you are not logged in to W&B, so this run is written offline; "
            "'wandb login' and 'wandb sync' upload it."
        )
        return "offline"
