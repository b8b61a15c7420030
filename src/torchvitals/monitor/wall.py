"""The wall between the monitor and the training: no mistake of ours gets through.

An error in a probe is told once, noted as an event of the run, and switches that probe off; the
training goes on. With TORCHVITALS_STRICT=1 (our own tests) it is raised instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import TracebackType

log = logging.getLogger("torchvitals")


def strict() -> bool:
    """True when errors must surface instead of being noted."""
    return os.environ.get("TORCHVITALS_STRICT", "") not in {"", "0"}


class Wall:
    """Remembers which probes failed."""

    def __init__(self, note: Callable[[str, Exception], None]) -> None:
        self._note = note
        self._failed: set[str] = set()
        self._around: dict[str, Around] = {}

    def up(self, name: str) -> bool:
        """True while that probe has not failed."""
        return name not in self._failed

    def failed(self, name: str, error: Exception) -> None:
        """Switch the probe off, tell once, go on."""
        if strict():
            raise error
        if name in self._failed:
            return
        self._failed.add(name)
        log.warning(
            "torchvitals: measuring %s failed (%s: %s) and is switched off for this run; "
            "training is not affected.",
            name,
            type(error).__name__,
            error,
        )
        self._note(name, error)

    def around(self, name: str) -> Around:
        """Run a piece of a probe behind the wall."""
        return self._around.get(name) or self._around.setdefault(name, Around(self, name))


class Around:
    """What `with wall.around(name)` enters, several times a step: made once a name."""

    def __init__(self, wall: Wall, name: str) -> None:
        self._wall = wall
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):  # an interrupt is not ours to hold back
            return False
        self._wall.failed(self._name, error)
        return True
