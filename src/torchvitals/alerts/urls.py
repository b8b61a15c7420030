"""Where the addresses of those who are told come from: the user's settings, and nowhere else.

The first of these that has any: the argument, the variable ``VITALS_ALERT_URLS``, ``urls`` under
``[tool.torchvitals.alerts]`` in the ``pyproject.toml`` here or above, ``urls`` under ``[alerts]``
in ``~/.config/torchvitals/config.toml``. They hold passwords: they are written nowhere, and never
shown.
"""

from __future__ import annotations

import logging
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchvitals.record import ConfigError

log = logging.getLogger("torchvitals")

VARIABLE = "VITALS_ALERT_URLS"
HIDDEN = "[alert URL]"
_BETWEEN = re.compile(r"[\s,]+(?=[a-zA-Z][a-zA-Z0-9+.-]*://)|\s+")
"""Addresses are apart by blanks; by commas too, where an address begins after one."""


def find_urls(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The addresses, in the order of the places that are looked at."""
    return (
        _listed(given, "urls")
        or _listed(os.environ.get(VARIABLE), VARIABLE)
        or _listed(_project_setting(), "[tool.torchvitals.alerts] urls")
        or _listed(_table(user_file(), "alerts").get("urls"), f"[alerts] urls of {user_file()}")
    )


def user_file() -> Path:
    """The user's own settings."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "torchvitals" / "config.toml"


def redacted(value: Any, urls: Sequence[str]) -> Any:
    """The value (text, list, dict …) with every address in it replaced."""
    if isinstance(value, str):
        for url in urls:
            value = value.replace(url, HIDDEN)
        return value
    if isinstance(value, Mapping):
        return {redacted(k, urls): redacted(v, urls) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(redacted(entry, urls) for entry in value)
    return value


def _listed(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where} must be a text or a list of them, got {type(value).__name__}")
    found = [url for text in texts for url in _BETWEEN.split(text.strip()) if url]
    return tuple(dict.fromkeys(found))


def _project_setting() -> Any:
    here = Path.cwd()
    for folder in (here, *here.parents):
        found = _table(folder / "pyproject.toml", "tool", "torchvitals", "alerts")
        if found.get("urls"):
            return found["urls"]
    return None


def _table(path: Path, *names: str) -> Mapping[str, Any]:
    try:
        found: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}
    except tomllib.TOMLDecodeError as error:
        log.warning("torchvitals: %s is not read for alert URLs: %s", path, error)
        return {}
    for name in names:
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}
