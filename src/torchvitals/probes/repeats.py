"""Samples that come again: a few elements of each stand for it.

Shuffled data shows each sample once an epoch. Workers that all have the same seed, a loader that
begins anew, or sampling with replacement show the same ones again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchvitals.probes.spread import sample_rows

ROWS = 512
"""Samples of a batch looked at, evenly spaced."""
ELEMENTS = 64
"""Elements of each sample looked at."""
WITHOUT_EPOCHS = 10_000
"""Samples remembered where no epochs are told."""
WITH_EPOCHS = 100_000


def fingerprints(batch: Tensor) -> Tensor:
    """What stands for the samples of a batch, to be read later."""
    return sample_rows(batch, ROWS, ELEMENTS)


class Seen:
    """Remembers samples of an epoch, the newest ones where there are too many."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._hashes: dict[int, None] = {}

    def repeat_frac(self, epoch: int, batches: Sequence[Tensor]) -> float | None:
        """Share of a step's samples that were seen before; None without any.

        A batch that is another one of the same step is the same pass once more (a closure, a second
        loss of the same batch) and not counted.
        """
        if epoch != self._epoch:
            self._epoch, self._hashes = epoch, {}
        num, repeated = 0, 0
        mine: set[tuple[int, ...]] = set()
        for batch in batches:
            raw = batch.cpu().view(torch.uint8).numpy().tobytes()
            size = len(raw) // len(batch)
            hashes = tuple(hash(raw[at : at + size]) for at in range(0, len(raw), size))
            if hashes in mine:
                continue
            mine.add(hashes)
            num += len(hashes)
            for one in hashes:
                repeated += one in self._hashes
                self._hashes[one] = None
        room = WITH_EPOCHS if epoch else WITHOUT_EPOCHS
        while len(self._hashes) > room:
            del self._hashes[next(iter(self._hashes))]
        return repeated / num if num else None
