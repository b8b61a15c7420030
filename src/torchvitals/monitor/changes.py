"""Notices what changed about the models after watch(): what is not followed is named.

Followed: parameters frozen after watch() (their gradients are missing from then on), moved to
another device, written over (loaded, re-initialised); optimizers made anew for the same parameters,
and groups of the models' parameters added to one. Named in the run and in a warning, once:
parameters that joined, that were replaced by others or unfrozen, modules that were swapped, and
groups with parameters that are not the models'. For these, close the monitor and watch again with
resume=True.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from torchvitals.probes.tree import Tree

LOOK_S = 5.0
"""Seconds between two looks: walking a large model takes milliseconds."""


class Changes:
    """Compares the models with what they were when they were watched."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        tree: Tree,
        optimizers: Sequence[Optimizer] = (),
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._models = dict(models)
        self._optimizers = optimizers
        self._strangers = {id(p) for _, p in self._stepped()}
        """What the optimizers held at first, of the models or not."""
        self._look_s = look_s
        self._looked_at = time.monotonic()
        self._flags = {site.name: site.parameter.requires_grad for site in tree.parameters}
        self._parameters = {site.name: id(site.parameter) for site in tree.parameters}
        self._modules = {site.name: id(site.module) for site in tree.modules}
        self._told: set[tuple[str, str]] = set()

    def look(self) -> str | None:
        """What changed since the last time, in words; None when nothing did or it is too early."""
        now = time.monotonic()
        if now - self._looked_at < self._look_s:
            return None
        self._looked_at = now
        tree = Tree(self._models)
        parameters = {site.name: site.parameter for site in tree.parameters}
        modules = {site.name: site.module for site in tree.modules}
        found: dict[str, list[str]] = {}

        def note(what: str, name: str) -> None:
            if (what, name) not in self._told:
                self._told.add((what, name))
                found.setdefault(what, []).append(name)

        for name, parameter in parameters.items():
            if name not in self._parameters:
                note("joined", name)
            elif id(parameter) != self._parameters[name]:
                note("replaced", name)
            elif parameter.requires_grad and not self._flags[name]:
                note("unfrozen", name)
        for name in self._parameters.keys() - parameters.keys():
            note("gone", name)
        for name, module in modules.items():
            if name in self._modules and id(module) != self._modules[name]:
                note("module replaced", name)
        ours = {id(parameter) for parameter in parameters.values()} | self._strangers
        for group, stepped in self._stepped():
            if id(stepped) not in ours:
                note("not the model's, but stepped", group)
        return "; ".join(_words(what, names) for what, names in found.items()) or None

    def _stepped(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizers' parameters and their groups' names."""
        for number, optimizer in enumerate(self._optimizers):
            prefix = f"optimizer{number}." if len(self._optimizers) > 1 else ""
            for k, group in enumerate(optimizer.param_groups):
                for parameter in group["params"]:
                    yield f"{prefix}group{k}", parameter


def _words(what: str, names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:5])
    more = len(names) - 5
    return f"{what}: {shown}{f' and {more} more' if more > 0 else ''}"
