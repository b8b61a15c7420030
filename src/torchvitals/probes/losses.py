"""The loss of each step, taken where `backward()` starts.

Several backward passes of one step are told apart by the line that calls them. From the same line
they are micro-batches, and the loss is their mean, or their sum if all were divided by the same
number (``loss / 4``, or the number of tokens in all of them). From different lines they are terms,
and the loss is their sum. Of a closure that an optimizer calls several times, the first call
counts. A loss that a GradScaler multiplied is taken as it was before.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from functools import wraps
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from torchvitals.probes.place import Place

FRAMEWORKS = ("lightning", "pytorch_lightning", "accelerate", "transformers", "ignite")
"""Packages that call `backward()` for a script: the line that counts is further up."""

_PACKAGES = Path(torch.__file__).parents[1]
BETWEEN = (
    *(str(_PACKAGES / name) + os.sep for name in ("torch", *FRAMEWORKS)),
    str(Path(__file__).parents[1]) + os.sep,
)

MAX_PENDING = 10_000
"""Backward passes that are remembered while no optimizer steps."""

MAX_FACTORS = 4
"""Divisions and multiplications by 1 that are looked through."""

Line = tuple[Any, int]


class Losses:
    """Sees `backward()`, from `open()` on, on the thread that calls it."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._on = self._inside = False
        self._places: list[Place] = []
        self._pending: dict[Line, list[tuple[Any, int]]] = {}
        """By place: the values and what each was divided by."""
        self._claimed: dict[Line, list[tuple[Any, int]]] = {}
        self._in_step: set[Line] | None = None
        """During an optimizer's step: the places seen in it."""
        self._divisor = 1
        """By what the last accumulated steps were divided."""
        self._scaled: tuple[ref[Tensor], Tensor, int] | None = None

    def open(self) -> None:
        """Start seeing."""
        original, scale = torch.autograd.backward, torch.amp.GradScaler.scale

        @wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._on or get_ident() != self._thread:
                return original(*args, **kwargs)
            self._see(args[0] if args else kwargs.get("tensors"), sys._getframe(1))
            self._inside = True
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False

        @wraps(scale)
        def scaled(scaler: Any, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            if self._on and isinstance(result, Tensor) and isinstance(outputs, Tensor):
                self._scaled = (ref(result), outputs.detach(), _divided_by(outputs))
            return result

        self._on = True
        self._places = [
            Place(torch.autograd, "backward", backward, original),
            Place(torch.amp.GradScaler, "scale", scaled, scale),
        ]

    @property
    def is_open(self) -> bool:
        """Whether it sees."""
        return self._on

    def close(self) -> None:
        """Stop seeing."""
        self._on = False
        for place in self._places:
            place.leave()
        self._places.clear()
        self._pending.clear()
        self._claimed.clear()

    def begin_step(self) -> None:
        """An optimizer's step begins; a closure may call `backward()` in it."""
        if self._in_step is None:
            self._in_step = set()

    def claim(self) -> None:
        """An optimizer that is not watched steps: what went before is probably its loss."""
        self._claimed, self._pending = self._pending or self._claimed, {}

    def end_step(self) -> Any:
        """The loss of what went before: a number, a tensor on a device, or None."""
        self._in_step = None
        pending, self._pending = self._pending or self._claimed, {}
        self._claimed = {}
        terms = [self._mean(values) for values in pending.values()]
        return sum(terms[1:], start=terms[0]) if terms else None

    def _see(self, root: Any, frame: FrameType) -> None:
        try:
            value, divisor = self._value(root)
            if value is None:
                return
            place = _place(frame)
            if self._in_step is not None:
                if place in self._in_step:
                    return
                self._in_step.add(place)
            known = self._pending.setdefault(place, [])
            if len(known) >= MAX_PENDING:
                known.clear()
            known.append((value, divisor))
        except Exception:  # a root of an odd kind has no loss for us
            return

    def _value(self, root: Any) -> tuple[Any, int]:
        """(value, what it was divided by) of what `backward()` starts from."""
        roots: Sequence[Any] = [root] if isinstance(root, Tensor) else list(root)
        if not roots or any(one.numel() != 1 or not one.is_floating_point() for one in roots):
            return None, 1
        divisor = _divided_by(roots[0]) if len(roots) == 1 else 1
        values = []
        for one in roots:
            value, scaled = one.detach(), self._scaled
            if scaled is not None and scaled[0]() is one:
                _, value, divisor = scaled
                self._scaled = None
            values.append(float(value) if value.is_cpu else value.reshape(()).float())
        return sum(values[1:], start=values[0]), divisor

    def _mean(self, values: list[tuple[Any, int]]) -> Any:
        total = sum((value for value, _ in values[1:]), start=values[0][0])
        divisor = values[0][1]
        if divisor == 1 or any(other != divisor for _, other in values):
            return total / len(values)
        if len(values) == divisor:
            self._divisor = divisor
        # The rest of an epoch that does not divide evenly is fewer than it was divided by.
        return total * (divisor / len(values)) if divisor == self._divisor else total


def _divided_by(loss: Tensor) -> int:
    """n, when the loss was made by ``/ n`` or ``* (1 / n)``; else 1.

    Reading a number that lives on a device would wait for it: negative, and the same for the same
    number.
    """
    node: Any = loss.grad_fn
    for _ in range(MAX_FACTORS):
        name, other = type(node).__name__, getattr(node, "_saved_other", None)
        if name not in ("DivBackward0", "MulBackward0"):
            break
        if isinstance(other, Tensor) and (other.numel() != 1 or not other.is_cpu):
            return -other.data_ptr() if other.numel() == 1 and name == "DivBackward0" else 1
        factor = float(other) if isinstance(other, Tensor | int | float) else 1.0
        if name == "MulBackward0":
            factor = 1 / factor if factor else 1.0
        if factor != 1:  # frameworks divide by 1 where there is nothing to divide by
            near = round(factor) if math.isfinite(factor) else 1
            return near if near > 1 and abs(factor - near) < 1e-6 * near else 1
        node = node.next_functions[0][0]
    return 1


def _place(frame: FrameType | None) -> Line:
    """The line of the script, or of the library it trains with, that called `backward()`."""
    place: Line = (None, 0)
    while frame is not None:
        place = (frame.f_code, frame.f_lineno)
        if not frame.f_code.co_filename.startswith(BETWEEN):
            break
        frame = frame.f_back
    return place
