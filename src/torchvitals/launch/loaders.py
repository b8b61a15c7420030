"""Waiting for data, and epochs, seen in `torch.utils.data.DataLoader`.

Loaders and their iterators stay what they are: their classes' `__iter__` and `__next__` are ours
for the length of the run. The loader that fed the first step is the one that trains; each pass over
it is an epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from torchvitals.probes.place import Place

if TYPE_CHECKING:
    from torchvitals.monitor.monitor import Monitor


class Loaders:
    """Tells a monitor about the loader that trains."""

    def __init__(self, is_training: Callable[[], bool]) -> None:
        self._is_training = is_training
        self._thread = get_ident()
        self._loaders: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()
        self._last: ref[Any] = ref(self)
        """The loader a batch was last taken from."""
        self._trains: ref[Any] | None = None
        self._monitor: Monitor | None = None

    def open(self) -> None:
        """Start seeing."""
        begin, following = DataLoader.__iter__, _BaseDataLoaderIter.__next__

        @wraps(begin)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            trains = self._trains is not None and self._trains() is loader
            if trains and self._monitor is not None and self._looks():
                self._monitor.epoch()
            iterator = begin(loader)
            self._loaders[iterator] = ref(loader)
            return iterator

        @wraps(following)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            if not self._looks():
                return following(iterator)
            self._last = self._loaders.get(iterator, self._last)
            if self._monitor is None or self._trains is None:
                return following(iterator)
            return self._monitor.fetch(partial(following, iterator))

        Place(DataLoader, "__iter__", __iter__, begin)
        Place(_BaseDataLoaderIter, "__next__", __next__, following)

    def attach(self, monitor: Monitor, *, anew: bool) -> None:
        """Tell this monitor. `anew`: it is another training, its first epoch is under way."""
        self._monitor = monitor
        if anew:
            loader = self._last()
            self._trains = ref(loader) if isinstance(loader, DataLoader) else None
            if self._trains is not None:
                monitor.epoch()

    def _looks(self) -> bool:
        return torch.is_grad_enabled() and get_ident() == self._thread and self._is_training()
