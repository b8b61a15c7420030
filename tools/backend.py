"""scikit-build-core, and before it the page: wheels and source archives contain it.

`VITALS_PAGE=0` builds without it, `VITALS_PAGE=1` fails where it can't be built. By default a wheel
without the page is made then, with a warning: its `vitals ui` says how to get one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as _build

sys.path.insert(0, str(Path(__file__).parent))

import page

# Editable installs show what is in the folder: `make page` builds it there.
for _name in (
    "build_editable",
    "get_requires_for_build_editable",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
):
    if hasattr(_build, _name):
        globals()[_name] = getattr(_build, _name)


def _page() -> None:
    wanted = os.environ.get("VITALS_PAGE", "")
    if wanted == "0" or page.is_fresh():
        return
    try:
        page.build()
    except OSError as error:
        if wanted == "1":
            raise
        print(f"*** The page is left out of this build: {error}", file=sys.stderr)


def _node() -> list[str]:
    return [] if os.environ.get("VITALS_PAGE") == "0" or page.is_fresh() else [page.NODE]


def get_requires_for_build_wheel(settings: Any = None) -> list[str]:
    return [*_build.get_requires_for_build_wheel(settings), *_node()]


def get_requires_for_build_sdist(settings: Any = None) -> list[str]:
    return [*_build.get_requires_for_build_sdist(settings), *_node()]


def build_wheel(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    _page()
    return _build.build_wheel(folder, settings, metadata)


def build_sdist(folder: str, settings: Any = None) -> str:
    _page()
    return _build.build_sdist(folder, settings)
