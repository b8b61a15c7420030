"""`plugins`: what other packages bring along: rules, sinks and probes, found by their entry points.

A package offers one in its ``pyproject.toml``::

    [project.entry-points."torchvitals.sinks"]
    mytracker = "my_package:MyTracker"

    torchvitals.rules    an object or module with `NAME` and `check(run, thresholds)`, which returns
                         a `Finding` or None; all that are installed are used
    torchvitals.sinks    a class with `write(row)`, used by ``watch(sinks=["mytracker"])``
    torchvitals.probes   a class with `measure(step)`, used by ``watch(probes=["myprobe"])``

One that can't be loaded is told once and left out; nothing it does at import stops a training.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

log = logging.getLogger("torchvitals")

RULES = "torchvitals.rules"
SINKS = "torchvitals.sinks"
PROBES = "torchvitals.probes"

_told: set[tuple[str, str]] = set()


@dataclass(frozen=True, slots=True)
class Plugin:
    """Something another package brought along."""

    name: str
    """The name of its entry point."""
    package: str
    """The distribution it came with."""
    thing: Any
    """What the entry point names, loaded."""


def plugin_names(group: str) -> list[str]:
    """The names on offer, without loading anything."""
    return sorted({entry.name for entry in entry_points(group=group)})


def plugins(group: str, *, needs: Sequence[str] = ()) -> list[Plugin]:
    """All of a group that could be loaded and have the attributes in `needs`, by name."""
    found = (_load(entry, needs) for entry in sorted(entry_points(group=group), key=_order))
    return [plugin for plugin in found if plugin is not None]


def plugin(group: str, name: str, *, needs: Sequence[str] = ()) -> Plugin | None:
    """The one of that name; None when there is none, or when it is broken."""
    for entry in sorted(entry_points(group=group, name=name), key=_order):
        return _load(entry, needs)
    return None


def leave_out(group: str, name: str, package: str, why: str) -> None:
    """Tell, once a process, that a plugin is not used."""
    if (group, name) not in _told:
        _told.add((group, name))
        log.warning(
            "torchvitals: the plugin %s of %s (%s) is left out: %s. Everything else works; update "
            "or uninstall it to be rid of this message.",
            name,
            package,
            group,
            why,
        )


def _load(entry: EntryPoint, needs: Sequence[str]) -> Plugin | None:
    package = entry.dist.name if entry.dist is not None else "an unknown package"
    try:
        thing = entry.load()
    except Exception as error:  # its import may do anything
        leave_out(entry.group, entry.name, package, f"{type(error).__name__}: {error}")
        return None
    lacks = [attribute for attribute in needs if not hasattr(thing, attribute)]
    if lacks:
        leave_out(entry.group, entry.name, package, f"it has no {' and no '.join(lacks)}")
        return None
    return Plugin(entry.name, package, thing)


def _order(entry: EntryPoint) -> tuple[str, str]:
    return entry.name, entry.value
