"""`Shelf`: the runs below a folder by their ids, and the histories that are open.

An id is a hash of a run's place below the folder. It is looked up, never used as a path: what is
not below the folder can't be named. A run has two readers: one for data, and one, the pulse, that
only ever looks whether there is more and so never waits for the other.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchvitals.record import RunNotFound
from torchvitals.store import History
from torchvitals.store.connect import FILE_NAME
from torchvitals.store.runs import run_folders

MOST_OPEN: Final = 12
CACHE_BYTES: Final = 64 << 20
"""Of one run's decoded values, and as much of its pyramids."""
ALL_CACHES_BYTES: Final = 144 << 20
"""Of all runs together: with more, those that were not looked at for longest are closed."""
SCAN_S: Final = 2.0
"""The folder is not searched for runs more often than this."""


@dataclass(eq=False)
class _Open:
    file: tuple[int, int]
    """Device and number of the file: a run that was deleted and made anew is another file."""
    reader: History
    pulse: History
    users: int = 0

    def close(self) -> None:
        self.reader.close()
        self.pulse.close()


def run_id(name: str) -> str:
    """The id of the run at that place below the folder."""
    return hashlib.blake2s(os.fsencode(name), digest_size=10).hexdigest()


class Shelf:
    """Every run below `root`. May be used from several threads."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._mutex = threading.Lock()
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._places: dict[str, Path] = {}
        self._scanned = float("-inf")
        self._scan_took = 0.0

    def runs(self) -> dict[str, Path]:
        """Id → folder of all runs, sorted by path."""
        with self._mutex:
            # A folder that takes long to walk is walked less often.
            pause = max(SCAN_S, 10 * self._scan_took)
            if time.monotonic() - self._scanned > pause:
                self._scan()
            return dict(self._places)

    def place(self, ident: str) -> Path:
        """The folder of a run; RunNotFound when no run has this id."""
        with self._mutex:
            if ident not in self._places and time.monotonic() - self._scanned > 0.25:
                self._scan()
            found = self._places.get(ident)
        if found is None:
            raise RunNotFound("There is no run with this id here; api/runs lists those there are.")
        return found

    def name(self, place: Path) -> str:
        """A run's place below the folder, as people read it."""
        return os.path.relpath(place, self.root)

    @contextmanager
    def reading(self, ident: str) -> Iterator[History]:
        """The run's history, for data."""
        with self._using(ident) as entry:
            yield entry.reader

    @contextmanager
    def pulse(self, ident: str) -> Iterator[History]:
        """The run's other history, for a quick look."""
        with self._using(ident) as entry:
            yield entry.pulse

    def close(self) -> None:
        """Close every history."""
        with self._mutex:
            while self._open:
                self._open.popitem()[1].close()

    def _scan(self) -> None:
        begun = time.monotonic()
        places = {run_id(self.name(path)): path for path in run_folders(self.root)}
        self._places = places
        self._scanned = time.monotonic()
        self._scan_took = self._scanned - begun
        for ident in [ident for ident in self._open if ident not in places]:
            if not self._open[ident].users:
                self._open.pop(ident).close()

    @contextmanager
    def _using(self, ident: str) -> Iterator[_Open]:
        place = self.place(ident)
        with self._mutex:
            entry = self._entry(ident, place)
            entry.users += 1
        try:
            yield entry
        finally:
            with self._mutex:
                entry.users -= 1
                if self._open.get(ident) is not entry and not entry.users:
                    entry.close()  # it was replaced while somebody still read
                self._tidy()

    def _entry(self, ident: str, place: Path) -> _Open:
        try:
            status = (place / FILE_NAME).stat()
        except OSError:
            raise RunNotFound(f"The run {self.name(place)} is gone.") from None
        file = (status.st_dev, status.st_ino)
        entry = self._open.get(ident)
        if entry is not None and entry.file != file:
            del self._open[ident]
            if not entry.users:
                entry.close()
            entry = None
        if entry is None:
            reader = History(place, cache_bytes=CACHE_BYTES)
            try:
                entry = _Open(file, reader, History(place, cache_bytes=1 << 20))
            except BaseException:
                reader.close()
                raise
            self._open[ident] = entry
        self._open.move_to_end(ident)
        return entry

    def _tidy(self) -> None:
        """Close what was not used for longest: too many are open, or they keep too much."""
        kept = sum(entry.reader.cached_bytes for entry in self._open.values())
        for ident in list(self._open):
            if len(self._open) <= MOST_OPEN and kept <= ALL_CACHES_BYTES:
                return
            entry = self._open[ident]
            if not entry.users:
                kept -= entry.reader.cached_bytes
                del self._open[ident]
                entry.close()
