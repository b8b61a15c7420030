"""`Noting`: what a monitor notes by itself as events of the run, and tells the user once."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from torchvitals.monitor.talk import Talk
from torchvitals.record import Event

if TYPE_CHECKING:
    from torchvitals.monitor.changes import Changes
    from torchvitals.monitor.recorder import Recorder
    from torchvitals.monitor.wall import Wall

log = logging.getLogger("torchvitals")


class Noting(Talk):
    """The part of a monitor that notes what happens."""

    _changes: Changes
    _recorder: Recorder
    _wall: Wall

    def _look_for_changes(self) -> None:
        if not self._wall.up("changes"):
            return
        found = self._changes.look()
        if found is not None:
            log.warning(
                "torchvitals: the model changed after watch() and this is not followed (%s); close "
                "the monitor and watch again with resume=True to have it measured.",
                found,
            )
            self.event("model_changed", found)

    def _note_trouble(self, text: str) -> None:
        self.event("metric_failed", text)

    def _note_flops(self, flops: int) -> None:
        self.event("flops", f"the model computes {flops:.3g} FLOPs a step", flops=flops)

    def note_not_seen(self) -> None:
        """Say that the activations of a compiled model are not measured."""
        text = (
            "the model was compiled before it was watched: its activations are not measured "
            "(gradients, parameters and updates are); call watch() before the model's first call"
        )
        log.warning("torchvitals: %s", text)
        self.event("not_seen", text, probe="activations")

    def _note_guard(self, kind: str, step: int, text: str, data: dict[str, Any]) -> None:
        if not self._closed:
            self._recorder.put(Event(step, time.time(), kind, text, data))

    def _note_failure(self, name: str, error: Exception) -> None:
        self.event(
            "degraded",
            f"measuring {name} failed and was switched off: {type(error).__name__}: {error}",
            probe=name,
        )
