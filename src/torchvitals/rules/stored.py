"""`Stored`: what rules ask of a stored run. `torchvitals.store.History` gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from torchvitals.record import Event, Floats, Key, RunInfo

Ints: TypeAlias = NDArray[np.int64]


class AttemptLike(Protocol):
    """One start of the training script."""

    @property
    def started(self) -> float:
        """When, in seconds since the epoch."""

    @property
    def pid(self) -> int:
        """Its process."""

    @property
    def host(self) -> str:
        """The machine it runs on."""

    @property
    def first_step(self) -> int | None:
        """None while it has stored no row."""

    @property
    def heartbeat(self) -> float:
        """When its writer was last alive."""


class Stored(Protocol):
    """A run that can be read."""

    @property
    def info(self) -> RunInfo:
        """What the run is made of."""

    @property
    def status(self) -> str:
        """running, finished, failed or died."""

    @property
    def attempts(self) -> Sequence[AttemptLike]:
        """All starts of the script, oldest first."""

    def keys(
        self, kind: str | None = None, site: str | None = None, stat: str | None = None
    ) -> list[Key]:
        """The stored columns, in stored order."""

    def steps(self, kind: str | None = None, *, attempt: int | None = None) -> Ints:
        """Steps with a row."""

    def times(
        self, kind: str | None = None, *, attempt: int | None = None
    ) -> tuple[Ints, NDArray[np.float64]]:
        """The same, and when each was stored."""

    def events(self, kind: str | None = None, *, attempt: int | None = None) -> list[Event]:
        """What happened."""

    def series(
        self,
        key: Key | str,
        *,
        attempt: int | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> tuple[Ints, Floats]:
        """One column."""

    def columns(
        self,
        keys: Sequence[Key],
        *,
        attempt: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        points: int | None = None,
    ) -> tuple[Ints, Floats]:
        """Columns side by side, thinned to `points` buckets of the largest magnitude."""
