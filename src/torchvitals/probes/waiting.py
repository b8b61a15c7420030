"""`Waiting`: outputs that may wait to be measured together, and how it is known that they may.

An output waits only if nobody writes into it before the model's call returns. That is tried out
first: it is measured at once and watched to the end of the step. Tensors count how often they were
written into: one that still has the count it came out with is what the module put out.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor, nn

NUMBER = 256
ELEMENTS = 1 << 21
"""How many outputs, and how many elements in all, may wait: 8 MB, which a third-level cache still
holds when they are read."""

PARTLY_ELEMENTS = 1 << 24
"""The same where only a part of each is read, 64 MB: not much of it would be in a cache anyway."""

LIGHT = 1 << 15
"""Outputs of at most this many elements need not be added up: their number is limit enough, 32 MB
that live a little longer."""

GROWTH = 2
"""Sizes are looked at again when outputs have become so many times as large."""

_version = attrgetter("_version")


@dataclass(slots=True, eq=False)
class Site:
    """One output of one module."""

    name: str
    line: int
    ends: tuple[float, float]
    floor: float | None
    """Activity floor of units, None where units can't die."""
    module: nn.Module
    alone: bool
    """It is all the module puts out, and may be tried out."""
    watched: Tensor | None = None
    version: int = 0
    """How often it had been written into when it came out."""
    size: int = 0
    """Elements, when it was looked at last."""

    def watch(self, tensor: Tensor) -> None:
        """Begin to try it out."""
        self.watched, self.version, self.size = tensor, tensor._version, tensor.numel()

    def stayed(self) -> bool:
        """End trying it out: whether nobody wrote into it, and it may wait from now on."""
        watched, self.watched = self.watched, None
        return watched is not None and watched._version == self.version


class Waiting:
    """Outputs of settled sites, in the order in which they came."""

    def __init__(self) -> None:
        self.settled: dict[nn.Module, Site] = {}
        """The sites whose outputs may wait."""
        self.light: dict[nn.Module, Site] = {}
        """Those of them that are small."""
        self.sites: list[Site] = []
        self.tensors: list[Tensor] = []
        self.versions: list[int] = []
        """Of the tensors when they came."""
        self._elements = 0
        self.room = ELEMENTS

    def settle(self, site: Site) -> None:
        """Let outputs of this site wait from now on."""
        self.settled[site.module] = site
        if site.size <= LIGHT:
            self.light[site.module] = site

    def unsettle(self, site: Site) -> None:
        """Never let it wait again."""
        site.alone = False
        for sites in (self.settled, self.light):
            sites.pop(site.module, None)

    def forget(self) -> None:
        """No site is settled."""
        self.settled.clear()
        self.light.clear()

    def add(self, site: Site, output: Tensor) -> None:
        """An output of a settled site."""
        self.sites.append(site)
        self.tensors.append(output)
        self.versions.append(output._version)
        if site.size > LIGHT:
            self._elements += output.numel()

    @property
    def full(self) -> bool:
        """Whether no more should wait."""
        return self._elements >= self.room or len(self.tensors) >= NUMBER

    def take(self) -> tuple[list[Site], tuple[Tensor, ...], list[Site]]:
        """What waits, and the sites whose output was overwritten after all: that call is lost."""
        sites, tensors, versions = self.sites.copy(), tuple(self.tensors), self.versions.copy()
        for one in (self.sites, self.tensors, self.versions):
            one.clear()
        self._elements = 0
        if sites and tensors[-1].numel() > GROWTH * sites[-1].size:
            self._weigh(sites, tensors)
        if list(map(_version, tensors)) == versions:
            return sites, tensors, []
        good, lost = [], []
        for site, tensor, version in zip(sites, tensors, versions, strict=True):
            if tensor._version == version:
                good.append((site, tensor))
            else:
                self.unsettle(site)
                lost.append(site)
        return [site for site, _ in good], tuple(tensor for _, tensor in good), lost

    def _weigh(self, sites: list[Site], tensors: tuple[Tensor, ...]) -> None:
        """Batches have become larger: what was light may not be any more."""
        for site, tensor in zip(sites, tensors, strict=True):
            site.size = tensor.numel()
            if site.size > LIGHT:
                self.light.pop(site.module, None)
