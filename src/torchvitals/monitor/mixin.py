"""`MonitorMixin`: a module that logs metrics of its own while a monitor watches it.

The module itself holds nothing: which monitors watch it stands in a table beside, so that copying
and saving the module is as ever. The monitor set last is the one it logs to; when that one is
closed, the one before is again.

What modules of the reference model log is kept in a `ReferenceBook`, apart from what the model
logs: a mean over two models would be nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from torchvitals.monitor.metric_book import MetricBook

if TYPE_CHECKING:
    from torch import nn

    from torchvitals.monitor.module_monitor import ModuleMonitor

_watching: WeakKeyDictionary[nn.Module, list[tuple[ref[ModuleMonitor], bool]]] = WeakKeyDictionary()
"""Of each mixin: monitors in the order they were set, and whether it is of their reference."""


class MonitorMixin:
    """Beside `nn.Module`: ``class Attention(nn.Module, MonitorMixin)``. Needs no `__init__`."""

    def get_module_monitor(self) -> ModuleMonitor | None:
        """The monitor that watches the model this module is part of; None without one.

        A module of the reference model gets it as the reference's: what it logs there is not mixed
        with what the model logs.
        """
        monitor, is_reference = _watcher(self)
        return monitor.for_reference() if monitor is not None and is_reference else monitor

    @property
    def is_monitoring(self) -> bool:
        """Whether what is logged now is kept."""
        monitor, _ = _watcher(self)
        return monitor is not None and monitor.is_monitoring()

    @property
    def is_reference_module(self) -> bool:
        """Whether this module belongs to the reference model."""
        return _watcher(self)[1]


def _watcher(module: MonitorMixin) -> tuple[ModuleMonitor | None, bool]:
    """The monitor set last, and whether the module is of its reference."""
    for entry, is_reference in reversed(_watching.get(module, ())):  # type: ignore[call-overload]
        monitor = entry()
        if monitor is not None:
            return monitor, is_reference
    return None, False


def enlist(modules: Iterable[nn.Module], monitor: ModuleMonitor, *, is_reference: bool) -> None:
    """Let the mixins among these know their monitor."""
    for module in modules:
        if isinstance(module, MonitorMixin):
            alive = [entry for entry in _watching.get(module, ()) if entry[0]() is not None]
            _watching[module] = [*alive, (ref(monitor), is_reference)]


def dismiss(modules: Iterable[nn.Module], monitor: ModuleMonitor, *, is_reference: bool) -> None:
    """Let them forget it; other monitors of theirs stay."""
    for module in modules:
        entries = _watching.pop(module, ())
        left = [entry for entry in entries if entry != (ref(monitor), is_reference)]
        if left:
            _watching[module] = left


class ReferenceBook(MetricBook):
    """What modules of the reference log in a step, under names the model does not use."""

    def __init__(self, on_trouble: Callable[[str], None] | None = None) -> None:
        super().__init__(on_trouble)
        self._ours: set[str] = set()
        """Names the model logged under in any step: none of them may hold a value of another."""

    def beside(self, ours: dict[str, float], step: int) -> dict[str, float]:
        """The step's values of the model, and those of the reference that have other names."""
        self.step = step
        theirs = self.finish()
        if not theirs:
            return ours
        self._ours |= ours.keys()
        return ours | {key: value for key, value in theirs.items() if key not in self._ours}
