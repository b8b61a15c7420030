"""`Inbox`: where the training thread leaves what the recorder shall write down.

Leaving something wakes nobody up: a thread that starts running takes a core, and the interpreter's
lock, from the step under way. What can wait is fetched when the recorder commits, or when there is
much of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from threading import Event
from typing import Generic, TypeVar

Item = TypeVar("Item")

MUCH = 64
"""Things that are fetched without waiting for the next commit."""


class Inbox(Generic[Item]):
    """A queue with one reader, who sleeps until it is worth getting up."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()
        self._wake = Event()

    def put(self, item: Item, *, waits: bool = False) -> None:
        """Leave something; with `waits` it need not be fetched at once. Never blocks."""
        self._items.append(item)
        if not waits or len(self._items) >= MUCH:
            self._wake.set()

    def wait(self, seconds: float) -> None:
        """Sleep until something can't wait, at most that long."""
        self._wake.wait(seconds)
        self._wake.clear()

    def take(self) -> Iterator[Item]:
        """Everything there is, also what comes meanwhile, in its order."""
        while self._items:
            yield self._items.popleft()

    def __len__(self) -> int:
        return len(self._items)
