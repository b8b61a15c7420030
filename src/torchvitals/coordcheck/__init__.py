"""The refined coordinate check: whether each layer's update keeps its size as a model widens.

    coordinate_check         trains a model at several widths, gives a CoordinateTable
    RefinedCoordinateCheck   the same terms for a run that a monitor watches
    rule                     adds the terms of a layer of your own

A layer's output moves for two reasons (Haas et al. 2025, arXiv 2505.22491):

    W_t x_t − W_0 x_0  =  (W_t − W_0) x_t  +  W_0 (x_t − x_0)
                            effective          propagating

Names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchvitals.coordcheck.check import coordinate_check as coordinate_check
    from torchvitals.coordcheck.exponents import Exponent as Exponent
    from torchvitals.coordcheck.rcc import RefinedCoordinateCheck as RefinedCoordinateCheck
    from torchvitals.coordcheck.table import CoordinateTable as CoordinateTable
    from torchvitals.coordcheck.terms import rule as rule

_HOMES = {
    "CoordinateTable": "torchvitals.coordcheck.table",
    "Exponent": "torchvitals.coordcheck.exponents",
    "RefinedCoordinateCheck": "torchvitals.coordcheck.rcc",
    "coordinate_check": "torchvitals.coordcheck.check",
    "rule": "torchvitals.coordcheck.terms",
}

__all__ = ["CoordinateTable", "Exponent", "RefinedCoordinateCheck", "coordinate_check", "rule"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchvitals.coordcheck' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
