"""`Waiting`: outputs that may wait to be measured together, and how it is known that they may.

An output waits only if nobody writes into it before the model's call returns. That is tried out
first: it is measured at once and watched to the end of the step. Tensors count how often they were
written into; one that comes out with its usual count, and still has it when it is looked at, is
what the module put out.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter

from torch import Tensor, nn

NUMBER = 256
ELEMENTS = 1 << 22
"""How many outputs, and how many elements in all, may wait: 16 MB that live a little longer."""

LIGHT = ELEMENTS // NUMBER
"""Outputs of at most this many elements need not be added up: their number is limit enough."""

_version = attrgetter("_version")
_usual = attrgetter("version")


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
    version: int = -1
    """How often it was written into when it came out."""
    steady: bool = False
    """It came out with this version the last two times; a fresh tensor needs no second time."""
    size: int = 0

    def watch(self, tensor: Tensor) -> None:
        """Begin to try it out."""
        version = tensor._version
        self.steady = version in (0, self.version)
        self.watched, self.version, self.size = tensor, version, tensor.numel()

    def stayed(self) -> bool:
        """End trying it out: whether nobody wrote into it, and it may wait from now on."""
        watched, self.watched = self.watched, None
        return watched is not None and watched._version == self.version and self.steady


class Waiting:
    """Outputs of settled sites, in the order in which they came."""

    def __init__(self) -> None:
        self.settled: dict[nn.Module, Site] = {}
        """The sites whose outputs may wait."""
        self.light: dict[nn.Module, Site] = {}
        """Those of them that are small."""
        self.sites: list[Site] = []
        self.tensors: list[Tensor] = []
        self._elements = 0
        self._last: tuple[list[Site], list[int]] = ([], [])
        """The sites of the last time, and their usual versions."""

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
        if site.size > LIGHT:
            self._elements += output.numel()

    @property
    def full(self) -> bool:
        """Whether no more should wait."""
        return self._elements >= ELEMENTS or len(self.tensors) >= NUMBER

    def take(self) -> tuple[list[Site], tuple[Tensor, ...], list[Site]]:
        """What waits, and the sites whose output was overwritten after all: that call is lost."""
        sites, tensors = self.sites.copy(), tuple(self.tensors)
        self.sites.clear()
        self.tensors.clear()
        self._elements = 0
        if sites != self._last[0]:
            self._last = (sites, list(map(_usual, sites)))
        if list(map(_version, tensors)) == self._last[1]:
            return sites, tensors, []
        good, lost = [], []
        for site, tensor in zip(sites, tensors, strict=True):
            if tensor._version == site.version:
                good.append((site, tensor))
            else:
                self.unsettle(site)
                lost.append(site)
        return [site for site, _ in good], tuple(tensor for _, tensor in good), lost
