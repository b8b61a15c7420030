"""Loss functions: whether what they are given is what they expect.

    criterion/<fn>/probability_frac   rows in [0, 1] that sum to 1 ± 1e−3: a softmax too many;
                                      of the binary functions elements in [0, 1]
    criterion/<fn>/num_classes        (binary: outputs, the last dimension)
    criterion/<fn>/logz_mean, logz_absmax     log Σ exp of the rows
    criterion/<fn>/top_target_frac    share of the most frequent class in this step
    criterion/<fn>/num_targets        classes seen so far
    criterion/<fn>/rare_target_frac   share of the rarest of them since the start
    criterion/<fn>/sum_reduction, batch_size

of `cross_entropy`, `nll_loss` (these two alone have logz), `binary_cross_entropy` and
`binary_cross_entropy_with_logits`;

    criterion/<fn>/target_integer_frac, target_min, target_max
    criterion/<fn>/num_outputs        last dimension of the prediction; 1 where it has one dimension
    criterion/<fn>/broadcast          1 when input and target had different shapes
    criterion/<fn>/sum_reduction

of `mse_loss`, `l1_loss` and `smooth_l1_loss`. Over several calls in a step: the mean, but extremes
where the name says so. Looked at are evenly spaced samples: at most 256 rows and 4,096 targets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchvitals.probes import loss_calls as calls
from torchvitals.probes.compiled import is_compiled
from torchvitals.probes.loss_calls import LossCall
from torchvitals.probes.probe import Distributions, Notes
from torchvitals.probes.sheet import Sheet
from torchvitals.probes.spread import sample, slices
from torchvitals.record import Key

OF_CLASSES = frozenset({"cross_entropy", "nll_loss"})
BINARY = frozenset({"binary_cross_entropy", "binary_cross_entropy_with_logits"})

ROWS = 256
MIN_ROWS = 16
LOGITS = 1 << 21
"""Logits of a call looked at, where that leaves at least MIN_ROWS rows."""
KEPT = 1 << 15
"""Up to this many logits are handed over as they are: the recorder's thread reduces them."""
TARGETS = 4096
MAX_CALLS = 64
"""Calls of a step looked at."""
MAX_CLASSES = 1 << 20
TOLERANCE = 1e-3
"""How far the sum of a row of probabilities may be from 1."""
EXTREMES = {"logz_absmax": max, "target_max": max, "target_min": min}


@dataclass(slots=True)
class CallRaw:
    """What was kept of one call."""

    name: str
    facts: dict[str, float]
    """What the shapes tell."""
    rows: Tensor | None
    """Logits, or (log Σ exp, min, max, sum) of each row."""
    is_reduced: bool
    target: Tensor | None
    ignore_index: int | None


class Criterion:
    """Looks at calls of loss functions while it is open."""

    name = "loss functions"

    def __init__(
        self, models: Sequence[nn.Module], *, on_error: Callable[[Exception], None]
    ) -> None:
        self._models = list(models)
        self._on_error = on_error
        self._raw: list[CallRaw] = []
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._spent = 0.0
        self._sheet = Sheet()

    @property
    def header(self) -> tuple[Key, ...]:
        """Columns of what was seen so far."""
        return self._sheet.header

    def open(self) -> None:
        """Start seeing calls. A compiled model's loss may be compiled with it: left alone."""
        if self._models and not any(map(is_compiled, self._models)):
            calls.listen(self)

    def close(self) -> None:
        """Stop seeing; the last one to close puts back what was there."""
        calls.leave(self)

    def stop(self) -> None:
        """Never see again."""
        self._models = []
        self.close()

    def see(self, call: LossCall) -> None:
        """Look at a call. Never raises."""
        begun = perf_counter()
        try:
            if len(self._raw) < MAX_CALLS:
                self._raw.append(_look(call))
        except Exception as error:  # nothing may reach the training from here
            self.fail(error)
        self._spent += perf_counter() - begun

    def fail(self, error: Exception) -> None:
        """Close, then tell."""
        self.close()
        self._on_error(error)

    def take(self) -> list[CallRaw]:
        """What this step saw; the next one starts afresh."""
        raw, self._raw = self._raw, []
        return raw

    def take_bins(self) -> Distributions:
        """None: it has no distributions."""
        return []

    def take_spent(self) -> float:
        """Seconds spent on calls since the last time this was asked."""
        spent, self._spent = self._spent, 0.0
        return spent

    def shape(self, _raw: list[CallRaw]) -> Hashable:
        """Steps are read one by one."""
        return ()

    def values(self, raws: Sequence[list[CallRaw]], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        return self._sheet.rows([self._columns(raw) for raw in raws])

    def _columns(self, raw: list[CallRaw]) -> dict[Key, float]:
        found: dict[tuple[str, str], list[float]] = {}
        classes: dict[str, list[NDArray[np.int64]]] = {}
        for call in raw:
            facts = dict(call.facts)
            if call.name in OF_CLASSES:
                facts |= of_rows(call)
            elif call.name not in BINARY:
                facts |= of_values(call)
            elif call.rows is not None:
                x = call.rows.cpu().double().numpy()
                facts["probability_frac"] = float(((x >= 0) & (x <= 1)).mean())
            for stat, number in facts.items():
                found.setdefault((call.name, stat), []).append(number)
            if call.name in OF_CLASSES | BINARY and call.target is not None:
                classes.setdefault(call.name, []).append(class_numbers(call))
        columns = {
            Key("criterion", name, stat): EXTREMES.get(stat, _mean)(numbers)
            for (name, stat), numbers in found.items()
        }
        for name, parts in classes.items():
            numbers = self._count(name, np.concatenate(parts))
            columns |= {Key("criterion", name, stat): value for stat, value in numbers.items()}
        return columns

    def _count(self, name: str, ids: NDArray[np.int64]) -> dict[str, float]:
        """What the targets of this step, and all so far, tell of the classes."""
        if not len(ids):
            return {}
        now = np.bincount(ids)
        before = self._counts.get(name, np.zeros(0, dtype=np.int64))
        total = np.zeros(max(len(now), len(before)), dtype=np.int64)
        total[: len(before)] += before
        total[: len(now)] += now
        self._counts[name] = total
        seen = total[total > 0]
        return {
            "top_target_frac": now.max() / len(ids),
            "num_targets": len(seen),
            "rare_target_frac": seen.min() / seen.sum(),
        }


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def _look(call: LossCall) -> CallRaw:
    x, target = call.input, call.target
    facts = {"sum_reduction": float(call.is_sum)}
    rows, is_reduced = None, False
    if call.name in OF_CLASSES:
        x = x if x.dim() > 1 else x[None]
        facts |= {"num_classes": x.shape[1], "batch_size": x.shape[0]}
        if x.numel():
            rows, is_reduced = _rows(x.detach())
        # Probabilities as targets have no classes.
        kept = None if target.is_floating_point() else target
    elif call.name in BINARY:
        facts |= {
            "num_classes": x.shape[-1] if x.dim() > 1 else 1,
            "batch_size": x.shape[0] if x.dim() else 1,
        }
        rows, kept = sample(x, TARGETS), target
    else:
        facts |= {
            "num_outputs": x.shape[-1] if x.dim() > 1 else 1,
            "broadcast": float(x.shape != target.shape),
        }
        kept = target
    if kept is not None:
        kept = sample(kept, TARGETS) if kept.numel() else None
    return CallRaw(call.name, facts, rows, is_reduced, kept, call.ignore_index)


def _rows(x: Tensor) -> tuple[Tensor, bool]:
    """A few rows of logits (N, C, …), or what they come to where they are many."""
    num = x.shape[1]
    limit = max(MIN_ROWS, min(ROWS, LOGITS // max(num, 1)))
    some = x
    if x.numel() > limit * num:
        first, *others = slices((x.shape[0], *x.shape[2:]), limit)
        some = x[(first, slice(None), *others)]
    if x.dim() > 2:
        some = some.transpose(1, -1)
    if some.numel() <= KEPT:
        return some.clone(memory_format=torch.contiguous_format), False
    some = some.to(torch.promote_types(some.dtype, torch.float32))
    reduced = (some.logsumexp(-1), some.amin(-1), some.amax(-1), some.sum(-1))
    return torch.stack([part.reshape(-1) for part in reduced]), True


def of_rows(call: CallRaw) -> dict[str, float]:
    """What the logits tell."""
    if call.rows is None:
        return {}
    x = call.rows.cpu().double().numpy()
    if call.is_reduced:
        logz, low, high, total = x
    else:
        x = x.reshape(-1, x.shape[-1])
        low, high, total = x.min(axis=1), x.max(axis=1), x.sum(axis=1)
        # A row of −inf alone, or with a NaN, has no log Z.
        with np.errstate(all="ignore"):
            logz = high + np.log(np.exp(x - high[:, None]).sum(axis=1))
    good = (low >= 0) & (high <= 1) & (np.abs(total - 1) <= TOLERANCE)
    return {
        "probability_frac": float(good.mean()),
        "logz_mean": float(logz.mean()),
        "logz_absmax": float(np.abs(logz).max()),
    }


def of_values(call: CallRaw) -> dict[str, float]:
    """What the targets of a regression tell."""
    if call.target is None:
        return {}
    y = call.target.cpu().double().numpy()
    y = y[np.isfinite(y)]
    if not y.size:
        return {}
    return {
        "target_integer_frac": float((y == np.rint(y)).mean()),
        "target_min": float(y.min()),
        "target_max": float(y.max()),
    }


def class_numbers(call: CallRaw) -> NDArray[np.int64]:
    """The targets as numbers of classes, without those to be ignored."""
    if call.target is None:
        return np.zeros(0, dtype=np.int64)
    y = call.target.cpu().numpy().reshape(-1)
    if call.name in BINARY:
        return np.asarray(y > 0.5, dtype=np.int64)
    good = (y >= 0) & (y != call.ignore_index) & (y < MAX_CLASSES)
    return np.asarray(y[good], dtype=np.int64)
