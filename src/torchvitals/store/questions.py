"""What readers may ask: arguments checked, and a hint for names that are not there."""

from __future__ import annotations

import difflib
import re

from torchvitals.record.errors import ConfigError


def site_pattern(site: str | None) -> re.Pattern[str] | None:
    """The compiled expression; ConfigError when it is none."""
    try:
        return None if site is None else re.compile(site)
    except re.error as error:
        raise ConfigError(
            f"{site!r} is not a regular expression ({error}); escape plain names with re.escape."
        ) from None


def check_points(points: int | None) -> None:
    """ConfigError unless it is None or positive."""
    if points is not None and points < 1:
        raise ConfigError(f"points must be at least 1, got {points}; use about the plot's width.")


def closest(name: str, known: list[str]) -> str:
    """A sentence about the names that are there, the similar ones first."""
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f" Did you mean {' or '.join(near)}?"
    return (
        f" It has {len(known)} others: {', '.join(known[:3])} …" if known else " It has none yet."
    )
