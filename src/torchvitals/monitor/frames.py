"""Which optimizer's step() is under way: told by the calls that led here."""

from __future__ import annotations

import inspect
import sys
from types import FrameType

from torch.optim import Optimizer

_OPTIMIZER_FILE = inspect.getfile(Optimizer)


def caller() -> FrameType | None:
    """The step() that called our hook: the nearest frame of torch's optimizer."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != _OPTIMIZER_FILE:
        frame = frame.f_back
    return frame


def in_a_step() -> bool:
    """Whether an optimizer's step() is under way: torch walks over its global hooks just then.

    A monitor that opens or closes there (`vitals run`) must not add or take away one of them.
    """
    return caller() is not None


def running(frame: FrameType | None) -> bool:
    """Whether that call is one of those that led here."""
    here: FrameType | None = sys._getframe(1)
    while here is not None and here is not frame:
        here = here.f_back
    return here is not None
