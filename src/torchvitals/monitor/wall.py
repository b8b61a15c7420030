"""The wall between the monitor and the training: no mistake of ours gets through.

An error in a probe is told once, noted as an event of the run, and switches that probe off; the
training goes on. With TORCHVITALS_STRICT=1 (our own tests) it is raised instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("torchvitals")


def strict() -> bool:
    """True when errors must surface instead of being noted."""
    return os.environ.get("TORCHVITALS_STRICT", "") not in {"", "0"}


class Wall:
    """Remembers which probes failed."""

    def __init__(self, note: Callable[[str, Exception], None]) -> None:
        self._note = note
        self._failed: set[str] = set()

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

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Run a piece of a probe behind the wall."""
        try:
            yield
        except Exception as error:  # the whole point
            self.failed(name, error)
