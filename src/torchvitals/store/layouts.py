"""Headers on the writing side: which layout a row's header is stored under.

A layout is a list of columns, stored once; rows refer to it by id. The header object of the last
row is found by identity, so a steady run pays one dictionary lookup a row. Someone who logs
ever-changing subsets of scalars gets at most `MAX_LAYOUTS` layouts of their own; after that, a
subset is stored in the smallest layout that holds it, the rest MISSING, and a header with unknown
columns widens to all columns of its kinds. So the number of layouts is bounded by the number of
different columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.key import Key
from torchvitals.store.codec import decode_ids, encode_ids
from torchvitals.store.schema import HISTOGRAMS, VALUES

MAX_LAYOUTS: Final = 16
"""Layouts of one form that follow headers exactly."""
_MAX_CACHED: Final = 4096

HISTOGRAM_STAT: Final = "[histogram]"
"""The stat under which the column of a site's histograms is filed."""


class Place(NamedTuple):
    """Where a header's values go: layout, its number of columns, positions (None: one to one)."""

    layout: int
    width: int
    positions: NDArray[np.intp] | None


class Layouts:
    """The writer's view of the tables `columns` and `layouts`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.reload()

    def reload(self) -> None:
        """Read the tables again, after a transaction was rolled back."""
        self._columns: dict[Key, int] = {
            Key(*names): number
            for number, *names in self._connection.execute(
                "SELECT id, kind, site, stat FROM columns ORDER BY id"
            )
        }
        self._layouts: dict[int, tuple[str, dict[int, int]]] = {}
        for number, form, blob in self._connection.execute("SELECT * FROM layouts ORDER BY id"):
            self._remember(number, form, decode_ids(blob).tolist())
        # The header is kept beside its place: an id is only unique while its object lives.
        self._by_identity: dict[int, tuple[object, Place]] = {}
        self._by_header: dict[tuple[str, tuple[Key, ...]], Place] = {}

    def of_row(self, header: tuple[Key, ...]) -> Place:
        """The place of a row of values."""
        known = self._by_identity.get(id(header))
        if known is not None:
            return known[1]
        return self._keep(header, self._place(VALUES, header))

    def of_histograms(self, sites: tuple[tuple[str, str], ...]) -> Place:
        """The place of a row of histograms."""
        known = self._by_identity.get(id(sites))
        if known is not None:
            return known[1]
        header = tuple(Key(kind, site, HISTOGRAM_STAT) for kind, site in sites)
        return self._keep(sites, self._place(HISTOGRAMS, header))

    def shape(self, layout: int) -> tuple[str, int]:
        """Form and number of columns of a layout."""
        form, positions = self._layouts[layout]
        return form, len(positions)

    def _keep(self, header: object, place: Place) -> Place:
        if len(self._by_identity) >= _MAX_CACHED:
            self._by_identity.clear()
        self._by_identity[id(header)] = (header, place)
        return place

    def _place(self, form: str, header: tuple[Key, ...]) -> Place:
        place = self._by_header.get((form, header))
        if place is None:
            place = self._find(form, header)
            if len(self._by_header) >= _MAX_CACHED:
                self._by_header.clear()
            self._by_header[form, header] = place
        return place

    def _find(self, form: str, header: tuple[Key, ...]) -> Place:
        ids = self._ids(header)
        wanted = set(ids)
        alike = [(n, at) for n, (f, at) in self._layouts.items() if f == form]
        holding = [(len(at), n) for n, at in alike if wanted <= at.keys()]
        fits = [n for width, n in holding if width == len(wanted)]
        if fits:
            number = fits[0]
        elif len(alike) < MAX_LAYOUTS:
            number = self._create(form, dict.fromkeys(ids))
        elif holding:
            number = min(holding)[1]
        else:
            number = self._create(form, self._widened(form, header, ids))
        at = self._layouts[number][1]
        positions = np.array([at[i] for i in ids], dtype=np.intp)
        exact = len(ids) == len(at) and bool((positions == np.arange(len(at))).all())
        return Place(number, len(at), None if exact else positions)

    def _widened(self, form: str, header: tuple[Key, ...], ids: list[int]) -> dict[int, None]:
        kinds = {key.kind for key in header}
        histogram = form == HISTOGRAMS
        known = (
            number
            for key, number in self._columns.items()
            if key.kind in kinds and (key.stat == HISTOGRAM_STAT) == histogram
        )
        return dict.fromkeys([*known, *ids])

    def _ids(self, header: tuple[Key, ...]) -> list[int]:
        """The columns' numbers; those that are new are stored, thousands at once."""
        known = self._columns
        new = [key for key in dict.fromkeys(header) if key not in known]
        if new:
            top = self._connection.execute("SELECT coalesce(max(id), 0) FROM columns").fetchone()[0]
            found = {Key(*key): number for number, key in enumerate(new, start=top + 1)}
            self._connection.executemany(
                "INSERT INTO columns (id, kind, site, stat) VALUES (?, ?, ?, ?)",
                [(number, *key) for key, number in found.items()],
            )
            known |= found
        return [known[key] for key in header]

    def _create(self, form: str, ids: Iterable[int]) -> int:
        columns = list(ids)
        cursor = self._connection.execute(
            "INSERT INTO layouts (form, columns) VALUES (?, ?)",
            (form, encode_ids(np.array(columns, dtype=np.int64))),
        )
        number = int(cursor.lastrowid or 0)
        self._remember(number, form, columns)
        return number

    def _remember(self, number: int, form: str, columns: Iterable[int]) -> None:
        self._layouts[number] = (form, {column: at for at, column in enumerate(columns)})
