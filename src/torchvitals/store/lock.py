"""One writer a run: an operating-system lock on ``run.lock`` next to the run file.

The kernel drops the lock when its process ends, however it ends, so a killed trainer never leaves
a run locked. The file names the holder (pid, host); it is removed when the run is closed. Forked
children (data loaders) let go of it at once, so that only the trainer itself keeps it.
Where the file system has no locks (some network mounts), `RunLock.held` is False and the writer
falls back to the heartbeat of the last attempt.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
import weakref
from pathlib import Path
from typing import Final

from torchvitals.record.errors import RunLocked

NAME: Final = "run.lock"
PATIENCE_S: Final = 1.0
"""Try so long: a reader that asks whether the run is alive holds the lock for microseconds."""

_UNSUPPORTED: Final = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK})
_FAR: Final = 1 << 30
"""Windows locks bytes, and locked bytes can't be read: lock one behind the text."""

if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int, *, shared: bool) -> bool:
        os.lseek(fd, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(fd: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class RunLock:
    """The lock of one run's folder; `acquire` makes it."""

    def __init__(self, path: Path, fd: int, *, held: bool) -> None:
        self.path = path
        self.held = held
        """False where the file system knows no locks."""
        self._fd = fd
        _open_locks.add(self)

    @classmethod
    def acquire(cls, folder: Path) -> RunLock:
        """Lock the run or raise RunLocked, which names who holds it."""
        path = folder / NAME
        deadline = time.monotonic() + PATIENCE_S
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                locked, held = _try_lock(fd, shared=False), True
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    os.close(fd)
                    raise
                locked, held = True, False
            if locked and _is_file(fd, path):
                break
            os.close(fd)
            if not locked and time.monotonic() > deadline:
                pid, host = holder(folder)
                raise RunLocked(
                    f"{folder} is being written by process {pid} on {host}; "
                    "stop that process, or choose another run name."
                )
            time.sleep(0.01)
        lock = cls(path, fd, held=held)
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        try:
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
            os.write(fd, text.encode())
        except OSError:
            lock.release()
            raise
        return lock

    def release(self) -> None:
        """Let go and remove the file. Doing it twice is fine."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        if sys.platform != "win32":
            # Removed while still held: whoever opened it meanwhile sees that it is gone (_is_file).
            self.path.unlink(missing_ok=True)
            os.close(fd)
        else:
            os.close(fd)
            try:
                self.path.unlink(missing_ok=True)
            except OSError:
                return

    def forget(self) -> None:
        """Close the descriptor in a forked child; the parent's lock stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def is_locked(folder: Path) -> bool | None:
    """Whether a process writes this run; None when that can't be known from here."""
    try:
        fd = os.open(folder / NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        return not _try_lock(fd, shared=True)
    except OSError:
        return None
    finally:
        os.close(fd)


def holder(folder: Path) -> tuple[int | str, str]:
    """Process id and host in the lock file, as far as they can be read."""
    try:
        data = json.loads((folder / NAME).read_text())
        return int(data["pid"]), str(data["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return "(unknown)", "an unknown host"


def _is_file(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


_open_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_open_locks):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
