"""`ComplexUpdates`: weights that are complex numbers, and the modulus of their change.

Elsewhere a complex tensor is measured as its modulus. The change of the modulus is not the change:
an optimizer may turn a weight without making it longer. Few models have such weights, so theirs are
kept whole and measured by torch's operators, whatever `updates` asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from torchvitals.probes.stepping import Lines, Stepping
from torchvitals.stats.backend import Backend, Bins, Measured

BinsOf = Callable[[list[int]], Bins | None]


class ComplexUpdates:
    """Measures the complex ones of some weights, and |Δw|."""

    def __init__(self, tensors: Sequence[Tensor], backend: Backend) -> None:
        self._tensors = list(tensors)
        self._lines = Lines([t if t.is_complex() else torch.empty(0) for t in tensors])
        self._backend = backend
        self._old: dict[int, Tensor] = {}

    def before_step(self, step: Stepping) -> None:
        """Keep what they are now."""
        lines = self._lines.of(step).lines
        self._old = {line: self._tensors[line].detach().clone() for line in lines}

    def after_step(
        self, step: Stepping, bins: BinsOf, delta_bins: BinsOf
    ) -> tuple[list[int], Measured] | None:
        """Lines and sums, as of a backend's `measure_update`; None where the step has none."""
        mine, old = self._lines.of(step), self._old
        self._old = {}
        if not mine.lines or old.keys() != set(mine.lines):
            return None
        with torch.no_grad():
            new = [self._tensors[line].detach() for line in mine.lines]
            change = [now - old[line] for now, line in zip(new, mine.lines, strict=True)]
            out = self._backend.measure(new, bins=bins(mine.lines))
            out.delta_sums = self._backend.measure(change, bins=delta_bins(mine.lines)).sums
            dots = torch.stack([_dots(d, g) for d, g in zip(change, mine.grads, strict=True)])
            out.dots = dots.numpy() if isinstance(out.sums, np.ndarray) else dots
        return mine.lines, out


def _dots(change: Tensor, grad: Tensor | None) -> Tensor:
    """Δ·g as of pairs of real numbers, |Δ|² and |g|²; zeros without a dense gradient."""
    if grad is None or grad.layout is not torch.strided:
        return torch.zeros(3, dtype=torch.float64, device=change.device)
    pairs = torch.view_as_real(change.to(torch.complex128)).reshape(-1)
    slopes = torch.view_as_real(grad.detach().to(torch.complex128)).reshape(-1)
    return torch.stack([pairs @ slopes, pairs @ pairs, slopes @ slopes])
