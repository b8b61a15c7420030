"""`History`: columns out. Everything that reads a run goes through this.

Guarantees: reading never disturbs the writer and never waits for it; each call sees one
consistent state of the run, and what was committed before the call; a damaged blob raises
CorruptRun instead of giving wrong numbers. A history may be used from several threads.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from torchvitals.curves import Forecast, Schedule, forecast, recognise
from torchvitals.record.errors import RunNotFound, UnknownKey
from torchvitals.record.event import Event
from torchvitals.record.finding import Finding
from torchvitals.record.key import Key
from torchvitals.record.row import Floats
from torchvitals.record.run_info import RunInfo
from torchvitals.store import derived, distributions, drawing, merge
from torchvitals.store.answers import (
    Buckets,
    Envelope,
    Histogram,
    Histograms,
    Matrix,
    Series,
    StepTimes,
)
from torchvitals.store.attempts import Attempt, life
from torchvitals.store.codec import Ints
from torchvitals.store.connect import connect_reader, run_file, translated
from torchvitals.store.layouts import HISTOGRAM_STAT
from torchvitals.store.lock import is_locked
from torchvitals.store.questions import check_points, closest, site_pattern
from torchvitals.store.runs import list_runs
from torchvitals.store.schema import HISTOGRAMS, VALUES
from torchvitals.store.source import CACHE_BYTES, Source


def open_run(path: str | os.PathLike[str]) -> History:
    """Open a run for reading: its folder, or the run file itself."""
    return History(path)


class History:
    """A run, read-only. Close it, or use it in a ``with``."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.time,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.path = run_file(path)
        """The run file."""
        if not self.path.exists():
            raise RunNotFound(_not_found(Path(path)))
        self._clock = clock
        self._mutex = threading.RLock()
        self._depth = 0
        self._connection = connect_reader(self.path)
        self._source = Source(self._connection, self.path, cache_bytes=cache_bytes)

    @property
    def info(self) -> RunInfo:
        """What the newest attempt was made of."""
        with self._snapshot():
            row = self._connection.execute(
                "SELECT info FROM attempts ORDER BY id DESC LIMIT 1"
            ).fetchone()
        return RunInfo(name=self.path.parent.name) if row is None else _info(row[0])

    @property
    def attempts(self) -> list[Attempt]:
        """All attempts, oldest first."""
        with self._snapshot() as source:
            return list(source.attempts)

    @property
    def status(self) -> str:
        """running, finished, failed, or died: it was killed and says nothing itself."""
        found = "died"
        # Asked twice before it is called dead: a run stores its end before it lets go of its lock,
        # and may do both between our look at the file and our look at the lock.
        for _ in range(2):
            attempts = self.attempts
            if attempts:
                now = self._clock()
                found = life(attempts[-1], self.path.parent, socket.gethostname(), now)
            elif is_locked(self.path.parent):  # its writer is about to say so
                found = "running"
            if found != "died":
                break
        return found

    @property
    def last_step(self) -> int | None:
        """The last step that was stored; None when there is none."""
        stored = [attempt for attempt in self.attempts if attempt.last_step is not None]
        return stored[-1].last_step if stored else None

    def version(self) -> int:
        """A number that changes when something was committed; costs next to nothing."""
        with self._mutex, translated(self.path, "read"):
            return self._source.version()

    @property
    def cached_bytes(self) -> int:
        """What is kept in memory of decoded data."""
        return self._source.cached_bytes

    def stamp(self) -> str:
        """A text that changes when something was stored, the same for every reader and process."""
        with self._mutex, translated(self.path, "read"):
            return self._source.stamp()

    def steps(self, kind: str | None = None, *, attempt: int | None = None) -> Ints:
        """Steps with a row, ascending; with `kind`, those whose rows have columns of that kind."""
        return self._times(kind, attempt).steps

    def times(self, kind: str | None = None, *, attempt: int | None = None) -> StepTimes:
        """The steps of `steps` and when they were stored."""
        return self._times(kind, attempt)

    def events(self, kind: str | None = None, *, attempt: int | None = None) -> list[Event]:
        """What happened, in the order in which it was stored; superseded events are left out."""
        with self._snapshot() as source:
            until = merge.cuts(source.attempts)
            rows = self._connection.execute(
                "SELECT attempt, step, time, kind, text, data FROM events ORDER BY id"
            ).fetchall()
        found = []
        for number, step, when, name, text, data in rows:
            cut = until.get(number) if attempt is None else None
            mine = attempt in (None, number) and kind in (None, name)
            if mine and (cut is None or step < cut):
                found.append(Event(step, when, name, text, json.loads(data)))
        return found

    def findings(self) -> list[Finding]:
        """What was found while the run was trained, each as it was last stored, the worst first."""
        newest = {
            event.data["id"]: event.data["finding"]
            for event in self.events("finding")
            if "id" in event.data and "finding" in event.data
        }
        found = [Finding.from_json(data) for data in newest.values()]
        return sorted(found, key=lambda one: (not one.is_open, -one.severity.rank, one.first_step))

    def keys(
        self, kind: str | None = None, site: str | None = None, stat: str | None = None
    ) -> list[Key]:
        """The stored columns, in stored order; `site` is a regular expression (re.search)."""
        pattern = site_pattern(site)
        with self._snapshot() as source:
            return [
                key
                for key in source.columns
                if key.stat != HISTOGRAM_STAT
                and (kind is None or key.kind == kind)
                and (stat is None or key.stat == stat)
                and (pattern is None or pattern.search(key.site))
            ]

    def series(
        self,
        key: Key | str,
        *,
        attempt: int | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> Series:
        """One column for start ≤ step < stop. Measured NaN and Inf are kept, gaps left out.

        `absmax` and percentiles (`p50`, `p99.9`) need not be stored: they are computed from min
        and max, and from the histograms.
        """
        key = self._key(key)
        with self._snapshot() as source:
            number = source.columns.get(key)
            if number is not None and key.stat != HISTOGRAM_STAT:
                found = self._views(number, attempt, start, stop)
                return Series(*merge.column(source, found, number))
            computed = derived.series(self, key, attempt=attempt, start=start, stop=stop)
            if computed is None:
                raise self._unknown(key)
            return Series(*computed)

    def envelope(
        self,
        key: Key | str,
        points: int = 1000,
        *,
        attempt: int | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> Envelope:
        """A series thinned for drawing: at most `points` buckets, no spike and no NaN lost."""
        key = self._key(key)
        check_points(points)
        with self._snapshot() as source:
            number = source.columns.get(key)
            if number is None or key.stat == HISTOGRAM_STAT:
                series = self.series(key, attempt=attempt, start=start, stop=stop)
                return drawing.envelope_of_values(*series, points)
            found = self._views(number, attempt, start, stop)
            return drawing.envelope(source, found, number, points)

    def forecast(self, key: Key | str = "loss", *, at: int, attempt: int | None = None) -> Forecast:
        """Where a falling curve is heading: its value at step `at` with a 90 % band.

        A power law fitted to what was measured so far; `confident` is False, with a `reason`, where
        it does not know (docs/curves.md).
        """
        steps, values = self.series(key, attempt=attempt)
        return forecast(steps, values, at)

    def schedule(self, group: str | None = None, *, attempt: int | None = None) -> Schedule:
        """The learning-rate schedule of a parameter group (None: the first) as it shows so far."""
        keys = [k for k in self.keys("optimizer", stat="lr") if group in (None, k.site)]
        if not keys:
            named = "any group" if group is None else f"group {group!r}"
            raise UnknownKey(f"no learning rate of {named} was stored")
        return recognise(*self.series(keys[0], attempt=attempt))

    def matrix(
        self,
        kind: str,
        stat: str,
        *,
        sites: str | None = None,
        attempt: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        points: int | None = None,
    ) -> Matrix:
        """One stat of all sites that match `sites` (re.search), for start ≤ step < stop.

        With `points`, the steps are thinned to at most so many buckets (each named by its first
        step): a bucket shows its value of largest magnitude, or NaN when it holds one. Buckets of
        64 steps and more come from the pyramids; a value may then be shown one cell (64 rows)
        early.
        """
        check_points(points)
        with self._snapshot():
            keys = self.keys(kind, sites, stat)
            if not keys:
                computed = derived.matrix(
                    self, kind, stat, sites, attempt=attempt, start=start, stop=stop, points=points
                )
                return Matrix(*computed)
            steps, values = self.columns(
                keys, attempt=attempt, start=start, stop=stop, points=points
            )
            return Matrix(steps, [key.site for key in keys], values)

    def columns(
        self,
        keys: Sequence[Key],
        *,
        attempt: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        points: int | None = None,
    ) -> tuple[Ints, Floats]:
        """Steps, and any stored columns side by side: many of them cost little more than one.

        Thinned by `points` as `matrix` is. Raises UnknownKey for one that is not stored.
        """
        check_points(points)
        with self._snapshot() as source:
            unknown = [key for key in keys if key not in source.columns]
            if unknown:
                raise self._unknown(unknown[0])
            numbers = [source.columns[key] for key in keys]
            wanted = set(numbers)
            layouts = [
                layout for layout in source.layouts(VALUES) if wanted & layout.position.keys()
            ]
            found = merge.views(source, layouts, attempt, start, stop)
            if points is None:
                return merge.matrix(source, found, numbers)
            return drawing.peaks(source, found, numbers, points)

    def buckets(
        self,
        kind: str,
        stat: str,
        points: int,
        *,
        sites: Collection[str] | None = None,
        attempt: int | None = None,
        start: int | None = None,
        stop: int | None = None,
        most_values: int | None = None,
    ) -> Buckets:
        """What `matrix(points=…)` shows, with both ends, the last value and what is not finite.

        `sites` are names. There are fewer buckets than `points` where more than `most_values`
        values would have to be read for them: then each is at least 64 steps long.
        """
        check_points(points)
        with self._snapshot() as source:
            keys = [key for key in self.keys(kind, stat=stat) if sites is None or key.site in sites]
            if not keys:
                cells, names = derived.buckets(
                    self, kind, stat, points, sites=sites, attempt=attempt, start=start, stop=stop,
                    most_values=most_values,
                )  # fmt: skip
            else:
                columns, names = [source.columns[key] for key in keys], [key.site for key in keys]
                wanted = set(columns)
                layouts = [
                    layout for layout in source.layouts(VALUES) if wanted & layout.position.keys()
                ]
                found = merge.views(source, layouts, attempt, start, stop)
                cells = drawing.buckets(source, found, columns, points, most_values=most_values)
            return Buckets(
                cells.first_step, names, cells.low, cells.high, cells.last, cells.flags,
                cells.num_values,
            )  # fmt: skip

    def row(self, step: int, *, attempt: int | None = None) -> dict[Key, float]:
        """Everything measured at that step; empty when nothing was."""
        with self._snapshot() as source:
            found = merge.views(source, source.layouts(VALUES), attempt, step, step + 1)
            return merge.row(source, found, step)

    def histogram(
        self, site: str, kind: str, *, step: int | None = None, attempt: int | None = None
    ) -> Histogram:
        """The newest histogram of a site, or with `step` the newest one not after it.

        Raises UnknownKey when the site has no histograms, or none so early.
        """
        stop = None if step is None else step + 1
        with self._snapshot() as source:
            number = self._histogram_column(site, kind)
            found = self._views(number, attempt, None, stop, HISTOGRAMS)
            newest = distributions.newest(source, found, number)
        if newest is None:
            raise UnknownKey(
                f"{kind}/{site} has no histogram at or before step {step}; ask for a later step."
            )
        return Histogram(*newest)

    def histograms(
        self,
        site: str,
        kind: str,
        *,
        attempt: int | None = None,
        start: int | None = None,
        stop: int | None = None,
    ) -> Histograms:
        """All histograms of a site for start ≤ step < stop."""
        with self._snapshot() as source:
            number = self._histogram_column(site, kind)
            found = self._views(number, attempt, start, stop, HISTOGRAMS)
            return Histograms(*distributions.all_of(source, found, number))

    def histogram_sites(self, kind: str | None = None) -> list[tuple[str, str]]:
        """(kind, site) of everything that has histograms, in stored order."""
        with self._snapshot() as source:
            return [
                (key.kind, key.site)
                for key in source.columns
                if key.stat == HISTOGRAM_STAT and (kind is None or key.kind == kind)
            ]

    def close(self) -> None:
        """Close the file. Doing it twice is fine."""
        with self._mutex:
            self._connection.close()

    def __enter__(self) -> History:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            text = (
                f"{self.status}, {len(self.keys())} keys, {len(self.attempts)} attempt(s), "
                f"last step {self.last_step}"
            )
        except Exception as error:  # a repr must not raise
            text = f"unreadable: {error}"
        return f"<History {str(self.path.parent)!r}: {text}>"

    @contextmanager
    def _snapshot(self) -> Iterator[Source]:
        """One consistent state for everything read inside; nests."""
        with self._mutex:
            if self._depth:
                yield self._source
                return
            with translated(self.path, "read"):
                self._connection.execute("BEGIN")
                self._depth = 1
                try:
                    self._source.refresh()
                    yield self._source
                finally:
                    self._depth = 0
                    self._connection.execute("ROLLBACK")

    def _views(
        self,
        number: int,
        attempt: int | None,
        start: int | None,
        stop: int | None,
        form: str = VALUES,
    ) -> list[merge.View]:
        layouts = [layout for layout in self._source.layouts(form) if number in layout.position]
        return merge.views(self._source, layouts, attempt, start, stop)

    def _times(self, kind: str | None, attempt: int | None) -> StepTimes:
        with self._snapshot() as source:
            columns = {n for key, n in source.columns.items() if kind in (None, key.kind)}
            layouts = [x for x in source.layouts(VALUES) if columns & x.position.keys()]
            found = merge.views(source, layouts, attempt, None, None)
            return StepTimes(*merge.times(source, found))

    def _histogram_column(self, site: str, kind: str) -> int:
        number = self._source.columns.get(Key(kind, site, HISTOGRAM_STAT))
        if number is None:
            known = [f"{k}/{s}" for k, s in self.histogram_sites()]
            raise UnknownKey(f"{kind}/{site} has no histograms.{closest(f'{kind}/{site}', known)}")
        return number

    def _key(self, key: Key | str) -> Key:
        """A key from its text; ``eval/val/loss`` may also be a number somebody logged so."""
        if not isinstance(key, str):
            return Key(*key)
        parsed, scalar = Key.parse(key), Key.scalar(key)
        with self._snapshot() as source:
            columns = source.columns
            return scalar if scalar in columns and parsed not in columns else parsed

    def _unknown(self, key: Key) -> UnknownKey:
        known = [str(name) for name in self.keys()]
        return UnknownKey(
            f"There is no column {key} in {self.path.parent}.{closest(str(key), known)}"
        )


@lru_cache(maxsize=8)
def _info(text: str) -> RunInfo:
    return RunInfo.from_json(json.loads(text))


def _not_found(path: Path) -> str:
    below = [str(run.path) for run in list_runs(path)] if path.is_dir() else []
    if below:
        return f"{path} is not a run; these below it are: {', '.join(below[:5])}."
    return f"There is no run at {path}; give the folder of a run."
