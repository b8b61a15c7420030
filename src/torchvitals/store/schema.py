"""The tables of a run file, their version, and how older files become newer ones.

`PRAGMA application_id` says that a SQLite file is a run, `PRAGMA user_version` which version its
tables have. `MIGRATIONS[n]` brings version n to n + 1; the first one builds an empty file. All of
a migration happens in one transaction: a file is never half migrated. docs/store.md describes
every table and blob.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from torchvitals.record.errors import CorruptRun, NewerRun

APPLICATION_ID: Final = 0x5669_7461
"""ASCII "Vita"."""

PAGE_SIZE: Final = 16384
"""Measured: smaller pages cost more time to write and read, larger ones space in short runs."""

VALUES: Final = "values"
HISTOGRAMS: Final = "histograms"

_TABLES = """
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY,
    started REAL NOT NULL,
    ended REAL,
    status TEXT NOT NULL,
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    heartbeat REAL NOT NULL,
    info TEXT NOT NULL
);
CREATE TABLE columns (
    id INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    site TEXT NOT NULL,
    stat TEXT NOT NULL,
    UNIQUE (kind, site, stat)
);
CREATE TABLE layouts (
    id INTEGER PRIMARY KEY,
    form TEXT NOT NULL,
    columns BLOB NOT NULL
);
CREATE TABLE rows (
    seq INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    layout INTEGER NOT NULL,
    step INTEGER NOT NULL,
    time REAL NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE blocks (
    id INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    layout INTEGER NOT NULL,
    num_rows INTEGER NOT NULL,
    low_step INTEGER NOT NULL,
    high_step INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    ordered INTEGER NOT NULL,
    axis BLOB NOT NULL
);
CREATE TABLE parts (
    block INTEGER NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (block, part)
);
CREATE TABLE pyramids (
    block INTEGER NOT NULL,
    part INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (block, part)
);
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    text TEXT NOT NULL,
    data TEXT NOT NULL
);
"""

MIGRATIONS: list[str] = [_TABLES]
"""Statements, separated by semicolons, from version 0 (an empty file) on."""

SCHEMA_VERSION: Final = len(MIGRATIONS)

OLDEST_READABLE: Final = 1
"""Readers understand versions from here on without migrating the file."""


def file_version(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the tables in this file; 0 when it is an empty database.

    Raises CorruptRun when it is not a run file, NewerRun when it is from a newer torchvitals.
    """
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if application == 0 and version == 0:
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            return 0
        raise CorruptRun(
            f"{path} is a SQLite file, but not a torchvitals run; choose another path."
        )
    if application != APPLICATION_ID:
        raise CorruptRun(
            f"{path} is a SQLite file of another application (id {application:#x}), "
            "not a torchvitals run; choose another path."
        )
    newest = len(MIGRATIONS)
    if version > newest:
        raise NewerRun(
            f"{path} has schema version {version}, this torchvitals reads up to {newest}; "
            "update with: pip install --upgrade torchvitals"
        )
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> int:
    """Bring the file to the newest version; gives the version it had. Needs a writing connection.

    Raises what `file_version` raises.
    """
    before = file_version(connection, path)
    newest = len(MIGRATIONS)
    if before == newest:
        return before
    connection.execute("BEGIN IMMEDIATE")
    try:
        for script in MIGRATIONS[before:]:
            # Not executescript: that one commits first.
            for statement in script.split(";"):
                if statement.strip():
                    connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {newest}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return before
