"""The gradient noise scale: how large a batch still pays, from the micro-batches of a step.

A step that adds up `n` micro-batches of `b` samples gives two looks at the same gradient: the first
micro-batch alone, and all B = n·b samples together. With S the squared norm of each,

    |G|² = (B·S_B − b·S_b) / (B − b)        the gradient without noise
    tr Σ = (S_b − S_B) / (1/b − 1/B)        the noise of one sample
    noise scale = tr Σ / |G|²               in samples

(McCandlish et al. 2018, arXiv 1812.06162): at that batch size half of a step's squared length is
noise, so it estimates the critical batch size. Both sums are very noisy in one step; their moving
averages are divided, not their ratio averaged. Costs one more read of the gradients in a monitored
step that accumulates, and nothing in others. Whether the loss is divided by n does not matter.

    noise/run/noise_scale      in samples (micro-batches where the batch's size is not known)
    noise/run/batch_size       samples of the step, in the same unit
    noise/run/signal_sq, noise_trace     |G|² and tr Σ of this step; either may come out negative
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.probes.probe import Distributions, Notes, blank
from torchvitals.record import Key
from torchvitals.stats import sums as s
from torchvitals.stats.backend import Backend, Measured

STATS = ("noise_scale", "batch_size", "signal_sq", "noise_trace")
FAR_OFF = 1e4
"""Pure noise makes the small batch's squared norm n times the large one's. Far beyond that the two
are not on one scale: a GradScaler's factor was taken out in between."""
DECAY = 0.9
"""Of the moving averages, a monitored step."""


@dataclass(slots=True)
class NoiseRaw:
    """The first micro-batch's gradients; None in a step of a single one."""

    first: Measured | None
    num_micro: int
    samples: int


class NoiseScale:
    """Looks at the gradients after the first of several backward passes."""

    header = tuple(Key("noise", "run", stat) for stat in STATS)

    def __init__(self, parameters: Sequence[Tensor], backend: Backend) -> None:
        self._parameters = parameters
        self._backend = backend
        self._first: Measured | None = None
        self._averages = np.zeros(2)
        self._weight = 0.0

    def look(self) -> None:
        """The first of several backward passes has ended."""
        grads = [p.grad for p in self._parameters]
        there = [grad for grad in grads if grad is not None]
        if len(there) == len(grads):
            self._first = self._backend.measure(there)

    def take(self, num_micro: int, samples: int) -> NoiseRaw:
        """What this step measured, with its number of backward passes and of samples."""
        raw = NoiseRaw(self._first, num_micro, samples)
        self._first = None
        return raw

    def take_bins(self) -> Distributions:
        """None: it has no distributions."""
        return []

    def shape(self, raw: NoiseRaw) -> Hashable:
        """Steps with and without a first micro-batch."""
        return raw.first is None

    def values(self, raws: Sequence[NoiseRaw], notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        out = blank((len(raws), len(STATS)))
        for row, raw, norms in zip(out, raws, notes.gradient_norm, strict=True):
            if raw.first is None or raw.num_micro < 2 or not len(norms):
                continue
            one = raw.samples / raw.num_micro if raw.samples else 1.0
            # The first is one n-th of the sum, or the sum is n times too large: n² both ways.
            small_sq = float(np.sum(s.finite_sumsq(raw.first.host().sums))) * raw.num_micro**2
            large_sq = float(np.sum(norms**2))
            if small_sq > FAR_OFF * raw.num_micro * large_sq:
                continue
            found = estimate(
                small_sq=small_sq, large_sq=large_sq, small=one, large=one * raw.num_micro
            )
            row[1] = one * raw.num_micro
            row[2:] = found
            if np.isfinite(found).all():
                self._averages = DECAY * self._averages + (1 - DECAY) * np.array(found)
                self._weight = DECAY * self._weight + (1 - DECAY)
            signal, noise = self._averages
            if self._weight and signal > 0 and noise >= 0:
                row[0] = noise / signal
        return out


def estimate(
    *, small_sq: float, large_sq: float, small: float, large: float
) -> tuple[float, float]:
    """(|G|², tr Σ) from squared gradient norms at two batch sizes; unbiased, so they may be < 0."""
    signal = (large * large_sq - small * small_sq) / (large - small)
    noise = (small_sq - large_sq) / (1.0 / small - 1.0 / large)
    return signal, noise
