"""Which modules of two models belong together: those at the same place, wrappers left out."""

from __future__ import annotations

from torch import nn

from torchvitals.probes.tree import Tree

ModulePair = tuple[nn.Module, nn.Module]


def paired(
    module: nn.Module, reference: nn.Module
) -> tuple[list[ModulePair], dict[str, ModulePair]]:
    """Every module, beside itself where it has no counterpart; and by name those that have one."""
    places = {site.name: site.module for site in Tree({"": reference}, bare=True).modules}
    found = {
        site.name: (site.module, places[site.name])
        for site in Tree({"": module}, bare=True).modules
        if site.name in places
    }
    together = list(found.values())
    alone = [(inner, inner) for model in (module, reference) for inner in model.modules()]
    return [*together, *alone], found
