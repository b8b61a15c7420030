"""Depth order: sites as they stand in the model, not as they came into the file."""

from __future__ import annotations

from collections.abc import Iterable

from torchvitals.record import ROOT, RunInfo


def depth_order(info: RunInfo) -> dict[str, int]:
    """Name of a module or parameter → its place; a module's own parameters follow it."""
    places: dict[str, int] = {ROOT: 0}
    for model in info.models:
        for module in model.modules:
            places.setdefault(module.name, len(places))
            for name in module.parameters:
                places.setdefault(name, len(places))
        for parameter in model.parameters:
            places.setdefault(parameter.name, len(places))
    return places


def in_depth_order(sites: Iterable[str], info: RunInfo) -> list[str]:
    """Known ones first; a part of a module (a head) stands where the module does."""
    places = depth_order(info)

    def place(site: str) -> int:
        name = site
        while name not in places:
            name, dot, _ = name.rpartition(".")
            if not dot:
                return len(places)
        return places[name]

    return sorted(sites, key=place)  # stable: stored order otherwise


def is_under(site: str, module: str) -> bool:
    """Whether a site is that module, or a part of it."""
    return module in (ROOT, site) or site.startswith(f"{module}.")
