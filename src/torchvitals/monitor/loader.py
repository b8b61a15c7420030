"""`monitor.data(loader)`: the user's loader, with the waiting for each batch on the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from torchvitals.probes.batch import size_of
from torchvitals.probes.clocks import DATA, OTHER, Clocks

Batch = TypeVar("Batch")


class WatchedLoader(Generic[Batch]):
    """Iterates as the loader does, and has its length and attributes. Each pass is an epoch."""

    def __init__(
        self,
        loader: Iterable[Batch],
        clocks: Clocks,
        *,
        begin: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self._loader = loader
        self._clocks = clocks
        self._begin, self._end = begin, end

    def __iter__(self) -> Iterator[Batch]:
        clocks = self._clocks
        clocks.fed = True
        self._begin()
        clocks.cut(OTHER)
        source = iter(self._loader)  # starting workers is waiting, too
        while True:
            try:
                batch = next(source)
            except StopIteration:
                clocks.cut(DATA)
                break
            clocks.cut(DATA)
            clocks.saw(*_size(batch))
            yield batch
            clocks.cut(OTHER)
        # Only a pass that came to its end is an epoch: a `break` is not.
        self._end()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without says so itself

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __repr__(self) -> str:
        return f"<torchvitals data {self._loader!r}>"


def fetched(clocks: Clocks, get: Callable[[], Batch]) -> Batch:
    """What `get` returns, with the waiting for it on the clock."""
    clocks.fed = True
    clocks.cut(OTHER)
    try:
        batch = get()
    finally:
        clocks.cut(DATA)
    clocks.saw(*_size(batch))
    return batch


def _size(batch: Any) -> tuple[int, int]:
    try:
        return size_of(batch)
    except Exception:  # a batch of an odd kind: its size is not known
        return 0, 0
