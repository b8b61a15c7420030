"""Which of many tensors are asked something in a step, where asking all of them would cost much."""

from __future__ import annotations

TURNS = 4
"""Each is asked in one step of so many."""
FEW = 16
"""At least so many are asked in each step."""


def turns_for(num: int) -> int:
    """Over how many steps the questions to so many tensors are spread."""
    return max(1, min(TURNS, num // FEW))
