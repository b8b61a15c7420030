"""Sees `backward()`: when it begins, when it ends, and the loss it starts from.

`loss.backward()` looks `torch.autograd.backward` up when it is called, so putting ours in its place
reaches every training loop. Activation checkpointing calls it again inside itself: only the
outermost call counts (docs/decisions/0010-clocks.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any

import torch


class BackwardCatcher:
    """Calls `begin()` and `end()` around each outermost backward pass of the thread it is made on.

    Neither may raise.
    """

    def __init__(self, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end
        self.on = True
        """Whether anybody wants to know just now."""
        self._inside = False
        self._ours: Any = None

    def install(self) -> None:
        """Start seeing."""
        original, begin, end, thread = torch.autograd.backward, self._begin, self._end, get_ident()

        @wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self.on or self._inside or get_ident() != thread:
                return original(*args, **kwargs)
            self._inside = True
            begin()
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False
                end()

        backward.__vitals_original__ = original  # type: ignore[attr-defined]
        self._ours = torch.autograd.backward = backward

    def remove(self) -> None:
        """Stop seeing. Where a later one still holds on to ours, that one takes both away."""
        self.on = False
        ours, self._ours = self._ours, None
        if ours is None:
            return
        ours.__vitals_over__ = True
        top: Any = torch.autograd.backward
        while getattr(top, "__vitals_over__", False):
            top = top.__vitals_original__
        torch.autograd.backward = top
