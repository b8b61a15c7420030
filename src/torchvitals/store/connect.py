"""Opening run files with SQLite, and SQLite's errors as sentences.

Writers get a connection in WAL mode: readers never wait for them, nor they for readers. Readers
open the file read-only and leave nothing behind; on a read-only medium without a journal they
read the file as it is (``immutable=1``).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from torchvitals.record.errors import CorruptRun, RunNotFound, StoreError
from torchvitals.store import schema

FILE_NAME: Final = "run.vitals"
BUSY_S: Final = 10.0
CHECKPOINT_PAGES: Final = 1000
"""16 MB of journal before it is folded into the file: raw rows that were sealed meanwhile are
never written to the file at all."""


def run_file(path: str | os.PathLike[str]) -> Path:
    """The run file of a run's folder, or the path itself when it is a file."""
    found = Path(path)
    return found if found.is_file() or found.suffix == ".vitals" else found / FILE_NAME


def connect_writer(path: Path) -> sqlite3.Connection:
    """A connection for writing, in WAL mode, tables migrated to the newest version.

    Needs the lock of the run.
    """
    if not path.exists():
        _make(path)
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        _lay_out(connection)
        schema.file_version(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        # Room for a whole block, so that publishing one does not spill half-way.
        connection.execute("PRAGMA cache_size = -16384")
        connection.execute("PRAGMA journal_size_limit = 67108864")
        # Debian's SQLite writes zeros over what is deleted: all raw rows a second time, when a
        # block takes their place.
        connection.execute("PRAGMA secure_delete = OFF").fetchall()
        schema.migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """A file with all tables, under another name until it is whole: no reader sees it empty."""
    new = path.with_name(path.name + ".new")
    for left in (new, new.with_name(new.name + "-journal")):
        left.unlink(missing_ok=True)  # of a writer that was killed here
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        _lay_out(connection)
        schema.migrate(connection, new)
    new.replace(path)


def _lay_out(connection: sqlite3.Connection) -> None:
    """What only acts on a file that is still empty."""
    connection.execute(f"PRAGMA page_size = {schema.PAGE_SIZE}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")


def connect_reader(path: Path) -> sqlite3.Connection:
    """A read-only connection; raises RunNotFound, CorruptRun, NewerRun or StoreError."""
    if not path.exists():
        raise RunNotFound(f"There is no run at {path}; give the folder of a run.")
    with translated(path, "open"):
        try:
            return _open_reader(path, "mode=ro")
        except sqlite3.OperationalError:
            # A journal that can't be shared: without one, the file alone is the whole truth.
            journal = path.with_name(path.name + "-wal")
            if _size(journal) > 0:
                raise StoreError(
                    f"{path} has a journal ({journal.name}), but its folder can't be written, so "
                    "the newest rows can't be read; copy the folder to a writable place."
                ) from None
            if os.access(path.parent, os.W_OK) and os.access(path, os.W_OK):
                raise
            return _open_reader(path, "mode=ro&immutable=1")


def _open_reader(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        version = schema.file_version(connection, path)
        if version == 0:
            raise CorruptRun(
                f"{path} is empty: its writer stopped before it stored anything. Delete it, or "
                "start the run again."
            )
        if version < schema.OLDEST_READABLE:
            raise StoreError(
                f"{path} has schema version {version}, reading needs {schema.OLDEST_READABLE}; "
                f"migrate it with: torchvitals.store.migrate({str(path)!r})"
            )
        connection.execute("SELECT count(*) FROM attempts").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def migrate(path: str | os.PathLike[str]) -> int:
    """Bring a run file to the newest schema version; gives the version it had."""
    file = run_file(path)
    if not file.exists():
        raise RunNotFound(f"There is no run at {file}; give the folder of a run.")
    with translated(file, "migrate"):
        connection = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
        try:
            return schema.migrate(connection, file)
        finally:
            connection.close()


@contextmanager
def translated(path: Path, doing: str) -> Iterator[None]:
    """Turn SQLite's and the system's errors into StoreErrors that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _sentence(path, doing, error) from error
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"Can't {doing} {path}: {error.strerror or error}; check the folder, its permissions "
            "and the free space."
        ) from error


_ADVICE: Final = (
    # First match by the start of SQLite's error name wins.
    ("SQLITE_FULL", "the disk is full. Free some space; what was committed before is safe."),
    ("SQLITE_READONLY", "the file or its folder is read-only; choose a writable folder."),
    ("SQLITE_CANTOPEN", "it can't be opened; check that the folder exists and its permissions."),
    ("SQLITE_BUSY", "another program holds the file; close other SQLite tools that write to it."),
    ("SQLITE_LOCKED", "another program holds the file; close other SQLite tools that write to it."),
    ("SQLITE_IOERR", "reading or writing failed; check the disk and its free space."),
)


def _sentence(path: Path, doing: str, error: sqlite3.Error) -> StoreError:
    name = getattr(error, "sqlite_errorname", None) or type(error).__name__
    if name.startswith("SQLITE_NOTADB"):
        return CorruptRun(f"{path} is not a torchvitals run file; choose another path.")
    if name.startswith("SQLITE_CORRUPT"):
        return CorruptRun(
            f"{path} is damaged ({error}); run torchvitals.store.verify on it to see what is lost, "
            "or take a copy from a backup."
        )
    advice = next((text for start, text in _ADVICE if name.startswith(start)), f"{error}.")
    return StoreError(f"Can't {doing} {path}: {advice} ({name})")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
