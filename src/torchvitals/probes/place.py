"""`Place`: a function of ours where somebody else's was, until it leaves."""

from __future__ import annotations

from typing import Any


class Place:
    """Puts `ours` in the place of `original`.

    Others may do the same on top of it, and leave in any order.
    """

    def __init__(self, owner: Any, name: str, ours: Any, original: Any) -> None:
        self._owner, self._name, self._ours = owner, name, ours
        ours.__vitals_original__ = original
        setattr(owner, name, ours)

    def leave(self) -> None:
        """Take ours away; where a later one still stands on it, that one takes both away."""
        self._ours.__vitals_over__ = True
        top: Any = getattr(self._owner, self._name)
        while getattr(top, "__vitals_over__", False):
            top = top.__vitals_original__
        setattr(self._owner, self._name, top)
