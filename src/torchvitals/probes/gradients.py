"""Gradients: per parameter before clipping, norms of every module subtree, what clipping did.

They are read where they are final: in the optimizer's pre-step hook, or just before a clipping
call. Gradient accumulation needs nothing more: `.grad` holds the sum.

    gradient/<parameter>/<stat>     the ten statistics
    gradient/<module>/norm          √Σ g² over the subtree; the root is the overall norm
    gradient/[root module]/clipped_norm, clip_ratio (= norm / max_norm), clip_value
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import is_not
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.probes.pieces import Piece
from torchvitals.probes.probe import (
    BinBook,
    Distributions,
    Notes,
    SiteNames,
    blank,
    each,
    places,
    same_lines,
    set_stats,
    stacked,
    stat_keys,
)
from torchvitals.probes.shards import Shards
from torchvitals.probes.stepping import Lines, Stepping
from torchvitals.probes.tree import Subtrees, Tree
from torchvitals.record import ROOT, Key
from torchvitals.stats import sums as s
from torchvitals.stats.backend import Backend, Bins, Measured
from torchvitals.stats.shards import is_dtensor

OVERALL = ("clipped_norm", "clip_ratio", "clip_value")


@dataclass(slots=True)
class Clip:
    """One clipping call."""

    lines: list[int]
    limit: float
    norm: Tensor | float | None
    """The total norm it returned (by norm), None (by value)."""


@dataclass(slots=True)
class GradientRaw:
    """Measurements of a step: each a list of lines and their sums."""

    before: list[tuple[list[int], Measured]] = field(default_factory=list)
    after: list[tuple[list[int], Measured]] = field(default_factory=list)
    """Measured again because clipping by value changes every tensor differently."""
    clips: list[Clip] = field(default_factory=list)


class Gradients:
    """Measures `.grad` of the chosen parameters."""

    def __init__(self, tree: Tree, chosen: Sequence[int], backend: Backend, stride: int) -> None:
        self._sites = [tree.parameters[index] for index in chosen]
        self._parameters: list[Tensor] = [site.parameter for site in self._sites]
        self._lines = Lines(self._parameters)
        self.shards = Shards(self._parameters)
        self._chosen = np.array(chosen, dtype=np.intp)
        self._backend = backend
        self._subtrees = Subtrees(tree, chosen)
        names = [site.name for site in self._sites]
        self.header = (
            *stat_keys("gradient", names),
            *(Key("gradient", name, "norm") for name in self._subtrees.names),
            *(Key("gradient", ROOT, stat) for stat in OVERALL),
        )
        self._bins = BinBook(stride, SiteNames(lambda line: ("gradient", names[line])))
        self._raw = GradientRaw()
        self._done: set[int] = set()

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters whose gradients are measured."""
        return self._parameters

    def before_clip(self, parameters: Sequence[Tensor]) -> list[int]:
        """Measure what is about to be clipped; returns the lines it covers."""
        lines = self._lines.among(parameters)
        self._measure(lines, [self.shards.grad(line) for line in lines])
        return lines

    def clipped(self, lines: list[int], limit: float, norm: Tensor | float | None) -> None:
        """Remember what a clipping call did."""
        if is_dtensor(norm):
            norm = float("nan")  # of pieces: to be worked out from the sums of all
        if lines:
            self._raw.clips.append(Clip(lines, limit, norm))

    def before_step(self, step: Stepping) -> None:
        """Measure the gradients the optimizer is about to use, unless clipping did already."""
        mine = self._lines.of(step)
        self._measure(mine.lines, mine.grads)
        by_value = {line for clip in self._raw.clips if clip.norm is None for line in clip.lines}
        again = [line for line in mine.lines if line in by_value] if by_value else []
        if again:
            grads = [g for line in again if (g := self.shards.grad(line)) is not None]
            self._raw.after.append((again, self._backend.measure(grads)))

    def rides(self, step: Stepping) -> bool:
        """Whether all gradients of the step are still to be measured, here and now or later."""
        mine = self._lines.of(step)
        return not self._done and step.whole and len(mine.lines) == len(step.parameters)

    def bins_of(self, step: Stepping) -> Bins | None:
        """Where the distributions of a step that rides along are added up."""
        return self._bins.of(self._lines.of(step).lines)

    def rode(self, step: Stepping, measured: Measured) -> None:
        """Take what was measured together with the change of the weights."""
        lines = self._lines.of(step).lines
        self._done.update(lines)
        self._raw.before.append((lines, measured))

    def forget(self) -> None:
        """Drop what was measured: a closure ran again, and its gradients are the newer ones."""
        self._raw, self._done = GradientRaw(), set()

    def take(self) -> GradientRaw:
        """What this step measured; the next one starts afresh."""
        raw = self._raw
        self.forget()
        return raw

    def pieces(self, raw: GradientRaw) -> dict[str, list[Piece]]:
        """What other ranks hold a part of."""
        return {"before": raw.before, "after": raw.after}

    def counted_sites(self) -> set[tuple[str, str]]:
        """(kind, site) of what this rank holds a counted piece of."""
        counted = np.flatnonzero(self.shards.counted)
        return {("gradient", self._sites[line].name) for line in counted}

    def take_bins(self) -> Distributions:
        """The histograms added up since the last time."""
        return self._bins.take()

    def _measure(self, lines: list[int], grads: Sequence[Tensor | None]) -> None:
        # Handed on as the list it is: a prepared one stays prepared.
        tensors: Sequence[Any] = grads
        if self._done or not all(map(is_not, grads, repeat(None))):
            fresh = [
                (line, grad)
                for line, grad in zip(lines, grads, strict=True)
                if grad is not None and line not in self._done
            ]
            lines, tensors = [line for line, _ in fresh], [grad for _, grad in fresh]
        if lines:
            self._done.update(lines)
            measured = self._backend.measure(tensors, bins=self._bins.of(lines))
            self._raw.before.append((lines, measured))

    def shape(self, raw: GradientRaw) -> Hashable:
        """Which lines were measured and clipped."""
        return (
            same_lines(raw.before),
            same_lines(raw.after),
            tuple((tuple(clip.lines), clip.norm is None) for clip in raw.clips),
        )

    def values(self, raws: Sequence[GradientRaw], notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        steps, num = len(raws), len(self._sites)
        table = blank((steps, num, len(s.STATS)))
        sumsq = np.full((steps, num), np.nan)
        measured = np.zeros(num, dtype=bool)
        for parts in zip(*(raw.before for raw in raws), strict=True):
            lines = places(parts[0][0], num)
            sumsq[:, lines] = set_stats(each(parts, "sums"), table, lines)
            measured[lines] = True
        after = sumsq.copy()
        overall = blank((steps, len(OVERALL)))
        clipped: list[int] = []
        unclipped = np.empty(0)
        for clips in zip(*(raw.clips for raw in raws), strict=True):
            limits = np.array([clip.limit for clip in clips])
            if clips[0].norm is None:
                overall[:, 2] = limits
                continue
            norms = np.array([float(clip.norm) for clip in clips])
            if self.shards.any and np.isnan(norms).any():
                norms = np.sqrt(np.nansum(sumsq[:, clips[0].lines], axis=1))
            if clips[0].lines != clipped:
                clipped, unclipped = clips[0].lines, norms
            with np.errstate(divide="ignore", invalid="ignore"):
                factors = np.minimum(1.0, limits / (norms + 1e-6))
                # Clipped twice: what counts is the norm before all of it.
                overall[:, 1] = unclipped / limits
            after[:, clips[0].lines] *= factors[:, None] ** 2
        for parts in zip(*(raw.after for raw in raws), strict=True):
            after[:, parts[0][0]] = s.finite_sumsq(stacked(parts, "sums"))
        notes.gradient_sumsq[:, self._chosen] = after
        notes.gradient_norm, notes.parameters = np.sqrt(sumsq), self._chosen
        if measured.any():
            nothing = np.isnan(after).all(axis=1)
            overall[:, 0] = np.where(nothing, np.nan, np.sqrt(np.nansum(after, axis=1)))
        norms = self._subtrees.norms(sumsq, measured)
        return np.concatenate([table.reshape(steps, -1), norms, overall], axis=1)
