"""Weights and their real change: Δw = w after `optimizer.step()` − w before.

Whatever happened inside the step (momentum, weight decay, clipping, a learning rate of each
group) is in Δw; nothing is reconstructed from lr × gradient.

    parameter/<parameter>/<stat>, parameter/<module>/norm
    update/<parameter>/<stat>, ratio (= ‖Δw‖ / (‖w‖ + 1e−12)), cosine (of Δw and −g),
                       lr_ratio (= ‖Δw‖ / ‖g‖ after clipping), frozen (1 after `PATIENCE` checks)
    update/<module>/norm, ratio, lr_ratio       the root is the whole model

"exact" keeps a copy of the weights; "sampled" keeps `sample_size` elements of each. Complex weights
are always kept whole.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.probes.complex_updates import ComplexUpdates
from torchvitals.probes.gradients import Gradients
from torchvitals.probes.keeper import Keeper
from torchvitals.probes.pieces import Piece, scaled
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
    to_float32,
)
from torchvitals.probes.sampler import Sampler
from torchvitals.probes.shards import Shards
from torchvitals.probes.stepping import Lines, Stepping
from torchvitals.probes.tree import Subtrees, Tree
from torchvitals.record import MISSING, Key
from torchvitals.stats import sums as s
from torchvitals.stats.backend import Backend, Measured

EPSILON = 1e-12
FROZEN_RATIO = 1e-12
PATIENCE = 3
"""Checks running with a ratio of at most FROZEN_RATIO before a parameter counts as frozen."""

PER_PARAMETER = ("ratio", "cosine", "lr_ratio", "frozen")
PER_MODULE = ("norm", "ratio", "lr_ratio")


@dataclass(slots=True)
class UpdateRaw:
    """Measurements of a step: lists of lines and their sums."""

    whole: list[tuple[list[int], Measured]] = field(default_factory=list)
    """Sums of the weights; of Δw too when updates are exact."""
    samples: list[tuple[list[int], Measured]] = field(default_factory=list)
    """Sums over the samples of w and Δw."""


class Updates:
    """Measures the chosen parameters, and their change if `mode` asks for it."""

    def __init__(
        self,
        tree: Tree,
        chosen: Sequence[int],
        backend: Backend,
        *,
        mode: str | None,
        parameters: bool,
        stride: int,
        sample_size: int,
    ) -> None:
        sites = [tree.parameters[index] for index in chosen]
        self._chosen = np.array(chosen, dtype=np.intp)
        self._names = [site.name for site in sites]
        self._tensors: list[Tensor] = [site.parameter for site in sites]
        self._complex: ComplexUpdates | None = None
        plain = self._tensors
        if mode and any(t.is_complex() for t in plain):
            self._complex = ComplexUpdates(plain, backend)
            plain = [torch.empty(0) if t.is_complex() else t for t in plain]
        self._lines = Lines(plain)
        self.shards = Shards(self._tensors)
        self._sizes = np.array([t.numel() for t in self._tensors], dtype=np.float64)
        self._trainable = np.array([t.requires_grad for t in self._tensors])
        self._backend = backend
        self._mode = mode
        self._parameters = parameters
        self._sample_size = sample_size
        self._subtrees = Subtrees(tree, chosen)
        self.header = self._make_header()
        self._weight_bins = self._book("parameter", stride if parameters else 0)
        self._change_bins = self._book("update", stride)
        self._still = np.zeros(len(sites), dtype=np.int64)
        self._raw = UpdateRaw()
        self._measured: set[int] = set()
        self._keepers: dict[tuple[int, ...], Keeper] = {}
        self._samplers: dict[tuple[int, ...], Sampler] = {}
        self._fixed: dict[tuple[int, ...], list[Tensor]] = {}

    def _book(self, kind: str, stride: int) -> BinBook:
        return BinBook(stride, SiteNames(lambda line: (kind, self._names[line])))

    def _make_header(self) -> tuple[Key, ...]:
        modules = self._subtrees.names
        keys: list[Key] = []
        if self._parameters:
            keys += stat_keys("parameter", self._names)
            keys += stat_keys("parameter", modules, ("norm",))
        if self._mode:
            keys += stat_keys("update", self._names, (*s.STATS, *PER_PARAMETER))
            keys += stat_keys("update", modules, PER_MODULE)
        return tuple(keys)

    def before_step(self, step: Stepping) -> None:
        """Keep what the weights are now."""
        mine = self._lines.of(step)
        if self._complex is not None:
            self._complex.before_step(step)
        if not mine.lines or not self._mode:
            return
        if self._mode == "exact":
            self._keeper(mine.lines).keep(step.number)
        else:
            self._sampler(mine.lines).before()

    def carries(self, step: Stepping) -> bool:
        """Whether all gradients of the step can be measured in the same pass as the change."""
        mine = self._lines.of(step)
        return self._mode == "exact" and len(mine.lines) == len(step.parameters)

    def after_step(
        self, step: Stepping, *, again: bool, gradients: Gradients | None = None
    ) -> None:
        """Measure the weights and their change. `again`: the next step is monitored too.

        `gradients`: its measurements ride along.
        """
        mine = self._lines.of(step)
        if self._complex is not None:
            weights, changes = self._weight_bins.of, self._change_bins.of
            found = self._complex.after_step(step, weights, changes)
            if found is not None:
                self._measured.update(found[0])
                self._raw.whole.append(found)
        if not mine.lines:
            return
        self._measured.update(mine.lines)
        if step.touched:
            # It wrote into gradients it had always left alone: this step has no values of them,
            # and from the next one on they are measured before.
            gradients = None
        if self._mode == "exact":
            keeper = self._keeper(mine.lines)
            again = again and keeper.rolls
            measured = self._backend.measure_update(
                keeper.tensors,
                keeper.old,
                mine.grads,
                bins=self._weight_bins.of(mine.lines),
                delta_bins=self._change_bins.of(mine.lines),
                roll=again,
                with_grads=gradients is not None,
                grad_bins=None if gradients is None else gradients.bins_of(step),
            )
            keeper.rolled(step.number if again else None)
            if gradients is not None:
                gradients.rode(step, Measured(sums=measured.grad_sums))
            self._raw.whole.append((mine.lines, measured))
            return
        if self._parameters:
            self._raw.whole.append((mine.lines, self._measure(mine.lines)))
        if self._mode:
            sampled = self._sampler(mine.lines).after(mine.grads)
            self._raw.samples.append((mine.lines, sampled))

    def at_end(self) -> None:
        """Measure the parameters that no optimizer stepped."""
        if self._parameters and len(self._measured) < len(self._names):
            lines = [line for line in range(len(self._names)) if line not in self._measured]
            self._raw.whole.append((lines, self._measure(lines)))

    def take(self) -> UpdateRaw:
        """What this step measured; the next one starts afresh."""
        raw, self._raw = self._raw, UpdateRaw()
        self._measured = set()
        return raw

    def pieces(self, raw: UpdateRaw) -> dict[str, list[Piece]]:
        """What other ranks hold a part of."""
        if self.shards.any and raw.samples:
            sizes = np.array([self.shards.size(k) for k in range(len(self._names))], dtype=float)
            scaled(raw.samples, sizes, self.shards.sharded)
        return {"whole": raw.whole, "samples": raw.samples}

    def counted_sites(self) -> set[tuple[str, str]]:
        """(kind, site) of what this rank holds a counted piece of."""
        counted = [self._names[line] for line in np.flatnonzero(self.shards.counted)]
        return {(kind, name) for kind in ("parameter", "update") for name in counted}

    def state_dict(self) -> dict[str, int]:
        """Checks running in which each parameter stood still, where there are any."""
        return {name: int(n) for name, n in zip(self._names, self._still, strict=True) if n}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where that state ended."""
        self._still = np.array([state.get(name, 0) for name in self._names], dtype=np.int64)

    def take_bins(self) -> Distributions:
        """The histograms added up since the last time."""
        return self._weight_bins.take() + self._change_bins.take()

    def _measure(self, lines: list[int]) -> Measured:
        key = tuple(lines)
        if key not in self._fixed:
            self._fixed[key] = self._backend.fixed(self.shards.local(line) for line in lines)
        return self._backend.measure(self._fixed[key], bins=self._weight_bins.of(key))

    def _keeper(self, lines: list[int]) -> Keeper:
        key = tuple(lines)
        if key not in self._keepers:
            names, tensors = self._part(lines)
            self._keepers[key] = Keeper(names, tensors, self._backend)
        return self._keepers[key]

    def _sampler(self, lines: list[int]) -> Sampler:
        key = tuple(lines)
        if key not in self._samplers:
            names, tensors = self._part(lines)
            self._samplers[key] = Sampler(names, tensors, self._backend, self._sample_size)
        return self._samplers[key]

    def _part(self, lines: list[int]) -> tuple[list[str], list[Tensor]]:
        return [self._names[line] for line in lines], [self.shards.local(line) for line in lines]

    def shape(self, raw: UpdateRaw) -> Hashable:
        """Which lines were measured, and how."""
        return (
            same_lines(raw.whole),
            tuple(measured.delta_sums is None for _, measured in raw.whole),
            same_lines(raw.samples),
        )

    def values(self, raws: Sequence[UpdateRaw], notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        steps, num = len(raws), len(self._names)
        weights = blank((steps, num, len(s.STATS)))
        weight_sumsq = np.full((steps, num), np.nan)
        measured = np.zeros(num, dtype=bool)
        for parts in zip(*(raw.whole for raw in raws), strict=True):
            lines = places(parts[0][0], num)
            weight_sumsq[:, lines] = set_stats(each(parts, "sums"), weights, lines)
            measured[lines] = True
        out: list[NDArray[np.float32]] = []
        if self._parameters:
            norms = self._subtrees.norms(weight_sumsq, measured)
            out += [weights.reshape(steps, -1), norms]
        if self._mode:
            out += self._changes(raws, notes, weight_sumsq)
        return np.concatenate(out, axis=1) if out else blank((steps, 0))

    def _changes(
        self, raws: Sequence[UpdateRaw], notes: Notes, weight_sumsq: NDArray[np.float64]
    ) -> list[NDArray[np.float32]]:
        steps, num = weight_sumsq.shape
        table = blank((steps, num, len(s.STATS) + len(PER_PARAMETER)))
        change_sumsq = np.full((steps, num), np.nan)
        weight_sumsq = weight_sumsq.copy()
        cosine = np.full((steps, num), np.nan)
        measured = np.zeros(num, dtype=bool)
        together = zip(*((*raw.whole, *raw.samples) for raw in raws), strict=True)
        for place, parts in enumerate(together):
            lines, first = places(parts[0][0], num), parts[0][1]
            if first.delta_sums is None:
                continue
            sums, dots = each(parts, "sums"), stacked(parts, "dots")
            change = set_stats(each(parts, "delta_sums"), table, lines)
            if place >= len(raws[0].whole):
                weight_sumsq[:, lines] = s.finite_sumsq(np.stack(sums))
            # A sample stands for the whole tensor: its mean square times the tensor's size.
            counts = np.stack([of_step[:, s.COUNT] for of_step in sums])
            scale = self._sizes[lines] / np.maximum(counts, 1.0)
            if (scale != 1.0).any():
                table[:, lines, 0] = to_float32(np.sqrt(change) * np.sqrt(scale))
                weight_sumsq[:, lines] *= scale
                change *= scale
            change_sumsq[:, lines] = change
            measured[lines] = True
            with np.errstate(divide="ignore", invalid="ignore"):
                # Square roots first: the product of two small sums leaves float64's range.
                cosine[:, lines] = -dots[..., 0] / np.sqrt(dots[..., 1]) / np.sqrt(dots[..., 2])
        gradient_sumsq = notes.gradient_sumsq[:, self._chosen]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.sqrt(change_sumsq) / (np.sqrt(weight_sumsq) + EPSILON)
            lr_ratio = np.sqrt(change_sumsq / gradient_sumsq)
        frozen = self._frozen(ratio)
        for column, found in enumerate((ratio, cosine, lr_ratio, frozen), start=len(s.STATS)):
            table[..., column] = or_missing(found)
        notes.update_ratio, notes.parameters = ratio, self._chosen
        notes.num_frozen = np.nansum(frozen, axis=1)
        modules = self._modules(change_sumsq, weight_sumsq, gradient_sumsq, measured)
        return [table.reshape(steps, -1), modules]

    def _modules(
        self,
        change: NDArray[np.float64],
        weight: NDArray[np.float64],
        gradient: NDArray[np.float64],
        measured: NDArray[np.bool_],
    ) -> NDArray[np.float32]:
        norm = self._subtrees.norms(change, measured)
        out = blank((*norm.shape, len(PER_MODULE)))
        out[..., 0] = norm
        # Like with like: weights and gradients of the parameters whose change is known.
        known = np.where(np.isnan(change), np.nan, 1.0)
        size = np.sqrt(self._subtrees.add_up(weight * known))
        slope = np.sqrt(self._subtrees.add_up(gradient * known))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = norm / (size + EPSILON), norm / slope
        for place, ratio in enumerate(ratios, start=1):
            out[..., place] = np.where(np.isfinite(ratio), to_float32(ratio), MISSING)
        return out.reshape(len(norm), -1)

    def _frozen(self, ratios: NDArray[np.float64]) -> NDArray[np.float64]:
        """1 where a trainable parameter stood still for PATIENCE checks running, else 0."""
        known = ~np.isnan(ratios)
        still = (ratios <= FROZEN_RATIO) & self._trainable
        if not still.any() and not self._still.any():  # the way of most trainings
            return np.where(known, 0.0, np.nan)
        return np.stack([self._stood(*step) for step in zip(known, still, strict=True)])

    def _stood(self, known: NDArray[np.bool_], still: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The same for one step after the other."""
        self._still = np.where(still, self._still + 1, np.where(known, 0, self._still))
        return np.where(known, (self._still >= PATIENCE).astype(np.float64), np.nan)


def or_missing(found: NDArray[np.float64]) -> NDArray[np.float32]:
    """The row's values; NaN was not measured."""
    return np.where(np.isnan(found), MISSING, to_float32(found))
