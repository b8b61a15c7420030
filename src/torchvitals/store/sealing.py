"""`Sealing`: which raw rows wait for becoming a block, and the block that is in the making.

Works inside the writer's transaction; after a rollback, `recount` starts from what is stored. Rows
that this writer appended are sealed from memory: reading and checking them again would cost as much
as writing them did.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from torchvitals.store.codec import Damaged
from torchvitals.store.sealer import RawRow, Seal, rows_due, stored_rows

MOST_BYTES: Final = 1 << 26
"""Of rows remembered: a run whose columns change all the time has many rows that wait."""


class Sealing:
    """Counts the raw rows of each (attempt, layout) and seals them when they are due."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        shape: Callable[[int], tuple[str, int]],
        seal_rows: int,
    ) -> None:
        self._connection = connection
        self._shape = shape
        self._seal_rows = seal_rows
        self._unsealable: set[tuple[int, int]] = set()
        self.recount()

    def recount(self) -> None:
        """Forget the block in the making and count the raw rows again."""
        groups = self._connection.execute(
            "SELECT attempt, layout, count(*) FROM rows GROUP BY 1, 2"
        )
        self._raw: dict[tuple[int, int], int] = {
            (attempt, layout): rows
            for attempt, layout, rows in groups
            if (attempt, layout) not in self._unsealable
        }
        self._seal: Seal | None = None
        self._forget()

    def appended(self, attempt: int, layout: int, rows: Sequence[RawRow]) -> None:
        """More raw rows; does a piece of work for each when there is some."""
        group = (attempt, layout)
        if group not in self._unsealable:
            self._raw[group] = self._raw.get(group, 0) + len(rows)
            self._remember(group, rows)
        for _ in rows:
            if self._seal is None and self._raw.get(group, 0) < self._due(layout):
                break
            self.advance()

    def advance(self) -> bool:
        """One bounded piece of work; True when more is due."""
        if self._seal is None:
            for group, rows in self._raw.items():
                if rows >= self._due(group[1]):
                    self._seal = self._start(*group)
                    return True
            return False
        if not self._seal.ready:
            self._seal.advance()
            return True
        self._publish(self._seal)
        return any(rows >= self._due(layout) for (_, layout), rows in self._raw.items())

    def finish(self) -> Iterator[None]:
        """Seal everything that gets smaller by it; pauses after each block, for a commit.

        Also takes the rows that killed attempts left behind.
        """
        while self._seal is not None or any(self._raw.values()):
            if self._seal is None:
                group = next(group for group, rows in self._raw.items() if rows)
                self._seal = self._start(*group)
                if self._seal is None:
                    continue
            while not self._seal.ready:
                self._seal.advance()
            if self._seal.saves_space:
                self._publish(self._seal)
            else:
                self._raw.pop((self._seal.attempt, self._seal.layout))
                self._seal = None
            yield

    def _start(self, attempt: int, layout: int) -> Seal | None:
        due, rows = self._due(layout), self._fresh.get((attempt, layout), [])
        try:
            if len(rows) != self._raw[attempt, layout]:
                rows = stored_rows(self._connection, attempt, layout, due)
            return Seal(self._connection, attempt, layout, self._shape(layout), rows[:due])
        except Damaged:
            # Left as they are: verify and the readers say which row is lost, training goes on.
            self._unsealable.add((attempt, layout))
            self._raw.pop((attempt, layout))
            self._bytes -= _size(self._fresh.pop((attempt, layout), []))
            return None

    def _publish(self, seal: Seal) -> None:
        seal.publish()
        group = (seal.attempt, seal.layout)
        self._raw[group] -= seal.num_rows
        self._seal = None
        rows = self._fresh.pop(group, [])
        self._bytes -= _size(rows)
        self._remember(group, [row for row in rows if row[0] > seal.last_seq])

    def _remember(self, group: tuple[int, int], rows: Sequence[RawRow]) -> None:
        self._fresh.setdefault(group, []).extend(rows)
        self._bytes += _size(rows)
        if self._bytes > MOST_BYTES:
            self._forget()

    def _forget(self) -> None:
        """What is not remembered is read from the file when its turn comes."""
        self._fresh: dict[tuple[int, int], list[RawRow]] = {}
        self._bytes = 0

    def _due(self, layout: int) -> int:
        return rows_due(*self._shape(layout), self._seal_rows)


def _size(rows: Sequence[RawRow]) -> int:
    return sum(len(payload) for *_, payload in rows)
