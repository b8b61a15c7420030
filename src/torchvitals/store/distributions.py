"""Histograms of one site, out of the pieces that hold them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchvitals.record.bins import NUM_BINS
from torchvitals.record.row import Counts
from torchvitals.store.codec import MISSING_COUNT, Ints
from torchvitals.store.merge import View, last_wins
from torchvitals.store.source import Source


def all_of(source: Source, found: Sequence[View], number: int) -> tuple[Ints, Counts]:
    """Steps and counts, shape (steps, NUM_BINS)."""
    if not found:
        return np.empty(0, dtype=np.int64), np.empty((0, NUM_BINS), dtype=np.uint32)
    pieces = [_taken(source, view, number) for view in found]
    steps, seqs, counts = (np.concatenate(column) for column in zip(*pieces, strict=True))
    merged = last_wins(steps, seqs, counts)
    return merged[0], merged[1]


def newest(source: Source, found: Sequence[View], number: int) -> tuple[int, Counts] | None:
    """The last one; reads only the pieces that may hold it."""
    best: tuple[int, int, Counts] | None = None
    for view in sorted(found, key=lambda view: -view.piece.high_step):
        if best is not None and view.piece.high_step < best[0]:
            break
        steps, seqs, counts = _taken(source, view, number)
        if len(steps):
            at = int(np.lexsort((seqs, steps))[-1])
            candidate = (int(steps[at]), int(seqs[at]), counts[at])
            if best is None or candidate[:2] > best[:2]:
                best = candidate
    return None if best is None else (best[0], best[2])


def _taken(source: Source, view: View, number: int) -> tuple[Ints, Ints, Counts]:
    rows = view.rows(source)
    axis = source.axis(view.piece)
    counts = source.counts(view.piece, view.piece.layout.position[number])[rows]
    there = counts[:, 0] != MISSING_COUNT
    return axis.steps[rows][there], axis.seqs[rows][there], counts[there]
