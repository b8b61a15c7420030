"""Rules of other packages, found by their entry points, made into rules like ours.

Theirs are given the stored run itself (a `torchvitals.History`), not the view of it that ours
share: it is documented, and stays as it is. Their findings stand beside ours; one that raises is
told as not checked, like one of ours.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torchvitals.record import Finding
from torchvitals.record.plugins import RULES, Plugin, leave_out, plugins
from torchvitals.rules.catalogue import NAMES
from torchvitals.rules.rule import NotChecked, Rule
from torchvitals.rules.run import Run
from torchvitals.rules.thresholds import Thresholds


def plugged() -> tuple[Rule, ...]:
    """Those that are installed now and have a name of their own."""
    found: dict[str, Rule] = {}
    for plugin in plugins(RULES, needs=("NAME", "check")):
        name = plugin.thing.NAME
        if not isinstance(name, str):
            why = f"its NAME must be a text, got {name!r}"
        elif name in NAMES or name in found:
            why = f"there is a rule named {name} already"
        else:
            found[name] = _rule(plugin)
            continue
        leave_out(RULES, plugin.name, plugin.package, why)
    return tuple(found.values())


def _rule(plugin: Plugin) -> Rule:
    thing, name = plugin.thing, plugin.thing.NAME

    def check(run: Run, thresholds: Thresholds) -> Finding | None:
        if run.at is not None:
            raise NotChecked(f"a rule of {plugin.package}, which sees whole runs only")
        found: Any = thing.check(run.stored, thresholds)
        if found is not None and not isinstance(found, Finding):
            raise TypeError(f"check() must return a Finding or None, got {found!r}")
        # What is open and what is over is told by the name.
        return found if found is None else replace(found, name=name)

    return Rule(
        name=name,
        title=str(getattr(thing, "TITLE", name.replace("_", " "))),
        needs=tuple(getattr(thing, "NEEDS", ())),
        check=check,
        page=f"{inspect.getdoc(thing) or ''}\n\nA rule of the package {plugin.package}.".strip(),
        cheap=False,
    )
