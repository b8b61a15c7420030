"""`Keeping`: where the metrics of a ModuleMonitor go: a run's file, made when the first one comes.

Also one file of metrics to hand around, as JSON: numbers come back bit for bit, NaN and Inf too.
"""

from __future__ import annotations

import atexit
import json
import logging
import time
from pathlib import Path
from typing import Any, Literal

import torch.distributed as dist
from torch import nn

from torchvitals.monitor.environment import describe_run
from torchvitals.monitor.recorder import Columns, Recorder
from torchvitals.monitor.run_path import default_path
from torchvitals.monitor.wall import Wall
from torchvitals.probes.tree import Tree
from torchvitals.record import ConfigError, Event, RunExists, StoreError
from torchvitals.store.connect import run_file
from torchvitals.store.history import open_run
from torchvitals.store.writer import RunWriter

log = logging.getLogger("torchvitals")

VERSION = 1


class Keeping:
    """Owns the run of a ModuleMonitor."""

    def __init__(self, run: str | Path | Literal[False] | None) -> None:
        self._run = run
        self._recorder: Recorder | None = None
        self._columns = Columns()
        self._notes: list[Event] = []
        self._closed = False
        self._last: dict[int, dict[str, float]] = {}
        self.path: Path | None = None if run in (None, False) else Path(run)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise RunExists now rather than after the first step."""
        if self._run is not False and self.path is not None and run_file(self.path).exists():
            raise RunExists(
                f"there is a run in {self.path} already, and metrics are not added to it; give "
                "another folder, or none: then one is made, named by date and model"
            )

    def put(self, model: nn.Module | None, step: int, values: dict[str, float]) -> None:
        """Store the values of a step."""
        self._last = {step: values}
        if self._run is False or self._closed or model is None or not writes():
            return
        if self._recorder is None:
            self._open(model)
        if self._recorder is not None:
            self._recorder.put(self._columns.row(step, values))

    def note(self, step: int, text: str) -> None:
        """Store that something went wrong."""
        event = Event(step, time.time(), "metric_failed", text)
        if self._recorder is None:
            self._notes.append(event)
        else:
            self._recorder.put(event)

    def everything(self) -> dict[int, dict[str, float]]:
        """All values, by step; without a run only those of the last step are still there."""
        if self._recorder is None or self.path is None:
            return {step: dict(values) for step, values in self._last.items()}
        self._recorder.flush()
        found: dict[int, dict[str, float]] = {}
        with open_run(self.path) as history:
            for key in history.keys():
                for step, value in zip(*history.series(key), strict=True):
                    found.setdefault(int(step), {})[str(key)] = float(value)
        return found

    def save(self, path: Path) -> None:
        """Write everything into one file."""
        steps = {str(step): values for step, values in self.everything().items()}
        path.write_text(json.dumps({"torchvitals_metrics": VERSION, "steps": steps}))

    def close(self) -> None:
        """Finish the run."""
        self._closed = True
        if self._recorder is not None:
            self._recorder.close("finished")
            atexit.unregister(self.close)

    def _open(self, model: nn.Module) -> None:
        path = self.path or default_path(model)
        self.path = path
        tree = Tree({"": model}, bare=True)
        info = describe_run(path.name, tree, [], config=None, watch={"module_monitor": True})
        try:
            writer = RunWriter.create(path, info)
        except StoreError as error:
            # The training goes on, and is told once.
            self._run = False
            log.warning("torchvitals: metrics are not stored: %s", error)
            return
        wall = Wall(lambda name, error: self.note(0, f"{name}: {error}"))
        self._recorder = Recorder(writer, wall, len(tree.parameters))
        for event in self._notes:
            self._recorder.put(event)
        self._notes.clear()
        atexit.register(self.close)


def writes() -> bool:
    """Whether this process stores metrics: of several ranks the first one does."""
    several = dist.is_available() and dist.is_initialized()
    return not several or dist.get_rank() == 0


def load_metrics(path: str | Path) -> dict[int, dict[str, float]]:
    """Read back what `ModuleMonitor.save()` wrote."""
    try:
        data: dict[str, Any] = json.loads(Path(path).read_text())
        if data["torchvitals_metrics"] != VERSION:
            raise ConfigError(f"{path} was written by a newer torchvitals")
        return {int(step): values for step, values in data["steps"].items()}
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no file of metrics ({error}); ModuleMonitor.save() writes them"
        ) from None
