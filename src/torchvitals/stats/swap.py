"""`Swap`: a function of ours in the place of one of torch's, for as long as somebody listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Swap:
    """A function of ours in the place of another.

    Who stands on top of ours when it is removed keeps it: it then only passes calls on, and goes
    when it is on top again.
    """

    def __init__(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._around = owner, name, around
        self._ours: Any = None

    def install(self) -> None:
        """Put ours on top. The same function as before where it can be: one less to compile."""
        self.remove()
        below = vars(self._owner)[self._name]
        if self._ours is None or self._ours.__vitals_original__ is not below:
            self._ours = self._around(below)
            self._ours.__vitals_original__ = below
        self._ours.__vitals_over__ = False
        setattr(self._owner, self._name, self._ours)

    def remove(self) -> None:
        """Take ours away."""
        if self._ours is not None:
            self._ours.__vitals_over__ = True
        top = found = vars(self._owner).get(self._name)
        while getattr(top, "__vitals_over__", False):
            top = top.__vitals_original__
        if top is not found:
            setattr(self._owner, self._name, top)
