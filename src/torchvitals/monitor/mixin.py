"""`MonitorMixin`: a module that logs metrics of its own while a monitor watches it.

The module itself holds nothing: which monitor watches it stands in a table beside, so that copying
and saving the module is as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from torch import nn

    from torchvitals.monitor.module_monitor import ModuleMonitor

_watching: WeakKeyDictionary[nn.Module, tuple[ref[ModuleMonitor], bool]] = WeakKeyDictionary()


class MonitorMixin:
    """Beside `nn.Module`: ``class Attention(nn.Module, MonitorMixin)``. Needs no `__init__`."""

    def get_module_monitor(self) -> ModuleMonitor | None:
        """The monitor that watches the model this module is part of; None without one."""
        entry = _watching.get(self)  # type: ignore[call-overload]
        return None if entry is None else entry[0]()

    @property
    def is_monitoring(self) -> bool:
        """Whether what is logged now is kept."""
        monitor = self.get_module_monitor()
        return monitor is not None and monitor.is_monitoring()

    @property
    def is_reference_module(self) -> bool:
        """Whether this module belongs to the reference model."""
        entry = _watching.get(self)  # type: ignore[call-overload]
        return entry is not None and entry[1]


def enlist(model: nn.Module, monitor: ModuleMonitor, *, is_reference: bool) -> None:
    """Let the mixins of a model know their monitor."""
    for module in model.modules():
        if isinstance(module, MonitorMixin):
            _watching[module] = (ref(monitor), is_reference)


def dismiss(model: nn.Module) -> None:
    """Let them forget it."""
    for module in model.modules():
        _watching.pop(module, None)
