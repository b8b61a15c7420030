"""Judges a step before it reaches the weights, and acts: skip, clip, roll back, stop, warn.

`guard.py` holds `Guard`; start there. What is seen is in `signals.py` and `losses.py`, what is
judged in `rules/`, what is done about it in `policy.py`, `aside.py`, `clip.py`, `snapshots.py`.
"""

from torchvitals.guard.guard import Guard
from torchvitals.guard.rules import AdaGC, Custom, Limit, MeanStd, MedianMad, Rolling, ZClip
from torchvitals.guard.verdict import Verdict

__all__ = [
    "AdaGC",
    "Custom",
    "Guard",
    "Limit",
    "MeanStd",
    "MedianMad",
    "Rolling",
    "Verdict",
    "ZClip",
]
