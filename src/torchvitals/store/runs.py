"""Finding runs below a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from torchvitals.record.errors import StoreError
from torchvitals.store.connect import FILE_NAME, connect_reader


class Listed(NamedTuple):
    """A run's folder, and what is wrong with its file (None: it opens)."""

    path: Path
    problem: str | None


def list_runs(folder: str | os.PathLike[str]) -> list[Listed]:
    """All runs below a folder (and the folder itself), sorted by path.

    Links are followed, each real folder is visited once. A file that can't be read is listed with
    its problem; a folder that does not exist holds no runs.
    """
    return [Listed(path, _problem(path / FILE_NAME)) for path in run_folders(folder)]


def run_folders(folder: str | os.PathLike[str]) -> list[Path]:
    """The folders that `list_runs` lists, without a look into their files."""
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    for here, below, files in os.walk(folder, followlinks=True):
        try:
            status = os.stat(here)
        except OSError:
            below.clear()
            continue
        identity = (status.st_dev, status.st_ino)
        if identity in seen:
            below.clear()
            continue
        seen.add(identity)
        if FILE_NAME in files:
            found.append(Path(here))
    return sorted(found)


def _problem(file: Path) -> str | None:
    try:
        connect_reader(file).close()
    except StoreError as error:
        return str(error)
    return None
