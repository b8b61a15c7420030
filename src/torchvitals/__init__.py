"""Vital signs for PyTorch training: watch a run from the inside, in one line.

    with torchvitals.watch(model, optimizer) as monitor:
        ...

Names load when they are first used, so that the desk half (reading, showing, exporting runs)
works where torch is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchvitals.coordcheck import RefinedCoordinateCheck as RefinedCoordinateCheck
    from torchvitals.guard.guard import Guard as Guard
    from torchvitals.monitor.attention import (
        monitor_scaled_dot_product_attention as monitor_scaled_dot_product_attention,
    )
    from torchvitals.monitor.keeping import load_metrics as load_metrics
    from torchvitals.monitor.mixin import MonitorMixin as MonitorMixin
    from torchvitals.monitor.module_monitor import ModuleMonitor as ModuleMonitor
    from torchvitals.monitor.monitor import Monitor as Monitor
    from torchvitals.monitor.watch import watch as watch
    from torchvitals.record.errors import VitalsError as VitalsError
    from torchvitals.record.key import Key as Key
    from torchvitals.store.history import History as History
    from torchvitals.store.history import open_run as open_run

__version__ = "0.1.0"

_HOMES = {
    "Guard": "torchvitals.guard.guard",
    "History": "torchvitals.store.history",
    "Key": "torchvitals.record.key",
    "ModuleMonitor": "torchvitals.monitor.module_monitor",
    "Monitor": "torchvitals.monitor.monitor",
    "MonitorMixin": "torchvitals.monitor.mixin",
    "RefinedCoordinateCheck": "torchvitals.coordcheck.rcc",
    "VitalsError": "torchvitals.record.errors",
    "load_metrics": "torchvitals.monitor.keeping",
    "monitor_scaled_dot_product_attention": "torchvitals.monitor.attention",
    "open_run": "torchvitals.store.history",
    "watch": "torchvitals.monitor.watch",
}
_NEED_TORCH = frozenset(
    {
        "Guard",
        "ModuleMonitor",
        "Monitor",
        "MonitorMixin",
        "RefinedCoordinateCheck",
        "load_metrics",
        "monitor_scaled_dot_product_attention",
        "watch",
    }
)

__all__ = [
    "Guard",
    "History",
    "Key",
    "ModuleMonitor",
    "Monitor",
    "MonitorMixin",
    "RefinedCoordinateCheck",
    "VitalsError",
    "__version__",
    "load_metrics",
    "monitor_scaled_dot_product_attention",
    "open_run",
    "watch",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'torchvitals' has no attribute {name!r}")
    try:
        value = getattr(import_module(home), name)
    except ModuleNotFoundError as error:
        if name in _NEED_TORCH and error.name == "torch":
            from torchvitals.record.errors import MissingExtra

            raise MissingExtra(
                f"torchvitals.{name} watches PyTorch training and needs torch, which is not "
                "installed here. Install it with: pip install torch"
            ) from error
        raise
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
