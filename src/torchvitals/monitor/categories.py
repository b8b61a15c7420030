"""Loss by category: per-sample losses summed for each label, until somebody asks for the sums.

    mean of a category = Σ w·l / Σ w        over all its samples since the last report

The training thread only copies: `add()` checks what can be checked without reading a device and
puts the copies aside. Reading, finding each label's line and summing happen in `settle()` and in
what `cut()` returns, on whichever thread calls them. Everything is float64 from the first addition
on. NaN and Inf are never left out: a NaN among the losses is a NaN in that category's mean, and
`num_nonfinite` says how many there were.

Cost on one busy core, float32 losses under 10,000 categories:

    a step of     add()       summing: integer tensor   the same, far apart   list of strings
    32 samples    0.01 ms     0.1 ms                    0.1 ms                0.1 ms
    100,000       0.1-1 ms    3 ms                      7 ms                  14 ms

A list of labels costs a dictionary lookup each, 0.1 µs; weights on the host 0.02 ms more, for the
check of their range. Memory: 32 bytes and two dictionary entries a category.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.monitor.wall import strict
from torchvitals.record import ConfigError

log = logging.getLogger("torchvitals")

OTHER = "[other]"
"""Where categories past the limit are summed up together."""
MAX_CATEGORIES = 100_000
MAX_WAITING = 256
"""Batches that may wait to be summed before `add()` sums them itself, if all are on the host."""

CHUNK = 8192
"""Labels looked up in one go: in between, the training thread gets its turn."""

FIELDS = ("weight", "sum", "count", "num_nonfinite")
WEIGHT, SUM, COUNT, NUM_NONFINITE = range(len(FIELDS))

Float64s: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.intp]
Values: TypeAlias = Tensor | NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class CategorySums:
    """What was summed up: line `i` of `values` belongs to `labels[i]`, no label stands twice."""

    labels: tuple[str, ...]
    values: Float64s
    """Shape (len(labels), 4), in the order of `FIELDS`: Σ w, Σ w·l, samples, non-finite losses."""

    @property
    def means(self) -> Float64s:
        """Σ w·l / Σ w of each category; NaN where all weights are zero."""
        with np.errstate(all="ignore"):
            return np.asarray(self.values[:, SUM] / self.values[:, WEIGHT])

    def as_dict(self) -> dict[str, tuple[float, ...]]:
        """From each label to (Σ w, Σ w·l, samples, non-finite losses)."""
        return dict(zip(self.labels, map(tuple, self.values.tolist()), strict=True))

    @classmethod
    def none(cls) -> CategorySums:
        """The sums of no samples at all."""
        return cls((), np.zeros((0, len(FIELDS))))

    @classmethod
    def merged(cls, parts: Iterable[CategorySums]) -> CategorySums:
        """The sums of all samples of the parts, added in their order."""
        parts = list(parts)
        places: dict[str, int] = {}
        lines = [
            np.fromiter((places.setdefault(label, len(places)) for label in part.labels), np.intp)
            for part in parts
        ]
        values = np.zeros((len(places), len(FIELDS)))
        with np.errstate(all="ignore"):
            for part, line in zip(parts, lines, strict=True):
                values[line] += part.values
        return cls(tuple(places), values)


class CategoryBook:
    """Collects samples until a report cuts them off.

    `add()` and `cut()` belong to the training thread. `settle()` and the function `cut()` returns
    may be called on any; they take turns.
    """

    def __init__(self, *, max_categories: int = MAX_CATEGORIES) -> None:
        if max_categories < 1:
            raise ConfigError(f"max_categories must be at least 1, got {max_categories}")
        self._waiting: deque[_Batch | _Cut] = deque()
        self._turn = threading.Lock()
        self._places = _Places(max_categories)
        self._totals = np.zeros((len(FIELDS), 64))
        self._on_host = True
        self._told = False

    def add(self, losses: Any, category: Any, weight: Any = None) -> None:
        """Take in per-sample losses (``reduction="none"``), a tensor, array or list of any shape.

        `category` is one label for all, or labels for the leading dimensions of `losses`: for
        losses of shape (batch, time) a list or integer tensor of length batch, or one of shape
        (batch, time), or that one flattened. Labels are anything hashable and known by their text:
        3 and "3" are one category. `weight` follows the same rule and is 1 by default.

        Copies and returns: tensors may be overwritten afterwards, devices are not waited for.
        """
        batch = _batch(losses, category, weight)
        self._on_host = self._on_host and batch.ready is None
        self._waiting.append(batch)
        # Nobody settled for long. Here it costs no sync; with a device it would, so we leave it.
        full = len(self._waiting) >= MAX_WAITING and self._on_host
        if full and self._turn.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._turn.release()

    def settle(self) -> None:
        """Sum up what waits, so that memory stays small. Call it about once a second."""
        with self._turn:
            self._drain()

    def cut(self) -> Callable[[], CategorySums]:
        """End a report here, at no cost; the function gives its sums, on any thread, any time."""
        cut = _Cut()
        self._waiting.append(cut)

        def sums() -> CategorySums:
            with self._turn:
                self._drain()
            return cut.sums

        return sums

    def take(self) -> CategorySums:
        """The sums of everything added since the last `cut()` or `take()`, which start afresh."""
        return self.cut()()

    def _drain(self) -> None:
        while self._waiting:
            item = self._waiting.popleft()
            if isinstance(item, _Cut):
                item.sums = self._hand_out()
                continue
            try:
                self._sum(item)
            except ConfigError as error:
                if strict():
                    raise
                self._tell(error)

    def _sum(self, batch: _Batch) -> None:
        if batch.ready:
            batch.ready()
        losses = _host(batch.losses).reshape(-1).astype(np.float64)
        if not losses.size:
            return
        lines = self._places.of(batch.labels)
        lines = np.repeat(lines, losses.size // lines.size)
        with np.errstate(all="ignore"):
            weight, weighted = None, losses
            if batch.weight is not None:
                weight = _host(batch.weight).reshape(-1).astype(np.float64)
                if batch.ready:
                    _check_weight(weight)
                weight = np.repeat(weight, losses.size // weight.size)
                weighted = losses * weight
            self._grow(len(self._places.labels))
            self._add(WEIGHT, lines, weight)
            self._add(SUM, lines, weighted)
            self._add(COUNT, lines, None)
            finite = np.isfinite(losses)
            if not finite.all():
                self._add(NUM_NONFINITE, lines[~finite], None)

    def _add(self, field: int, lines: Places, amount: Float64s | None) -> None:
        size = len(self._places.labels)
        if lines.size * 8 < size:
            # A small batch needs not touch every category.
            np.add.at(self._totals[field], lines, 1.0 if amount is None else amount)
        else:
            self._totals[field, :size] += np.bincount(lines, amount, minlength=size)

    def _grow(self, size: int) -> None:
        more = size - self._totals.shape[1]
        if more > 0:
            more = max(more, self._totals.shape[1])
            self._totals = np.pad(self._totals, ((0, 0), (0, more)))

    def _hand_out(self) -> CategorySums:
        lines = np.flatnonzero(self._totals[COUNT])
        values = np.ascontiguousarray(self._totals[:, lines].T)
        self._totals[:, lines] = 0.0
        labels = self._places.labels
        return CategorySums(tuple(labels[line] for line in lines.tolist()), values)

    def _tell(self, error: ConfigError) -> None:
        if not self._told:
            self._told = True
            log.warning("torchvitals: samples were left out of the sums by category: %s", error)


class _Cut:
    """Stands among the batches where a report ends."""

    __slots__ = ("sums",)

    sums: CategorySums


@dataclass(frozen=True, slots=True)
class _Batch:
    """Our own copies of one `add()`; `labels` and `weight` are to be repeated until they fit."""

    losses: Values
    labels: Values | list[Any]
    weight: Values | None
    ready: Callable[[], None] | None
    """Waits until the copies are made. None: everything is on the host."""


class _Places(dict[Any, int]):
    """label → its line. A label seen first gets the next one, past the limit that of `OTHER`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.labels: list[str] = []
        self._limit = limit
        self._lines: dict[str, int] = {}
        self._told = False

    def of(self, labels: Values | list[Any]) -> Places:
        """The line of each label."""
        if isinstance(labels, list):
            return self._of_list(labels)
        array = _host(labels).reshape(-1)
        if array.dtype.kind not in "iu":
            return self._of_list(array.tolist())
        low, high = int(array.min()), int(array.max())
        if high - low > 4 * array.size + 1024:
            found, places = np.unique(array, return_inverse=True)
            return np.asarray(self._of_list(found.tolist())[places.reshape(-1)])
        # Small types would overflow on their own range; the largest can't become smaller.
        array = array if array.dtype == np.uint64 else array.astype(np.int64)
        places = (array - array.dtype.type(low)).astype(np.intp)
        found = np.flatnonzero(np.bincount(places))
        lines = np.zeros(high - low + 1, dtype=np.intp)
        lines[found] = self._of_list([low + place for place in found.tolist()])
        return np.asarray(lines[places])

    def _of_list(self, labels: list[Any]) -> Places:
        lines = np.empty(len(labels), dtype=np.intp)
        try:
            for start in range(0, len(labels), CHUNK):
                chunk = labels[start : start + CHUNK]
                lines[start : start + CHUNK] = np.fromiter(map(self.__getitem__, chunk), np.intp)
        except TypeError as error:
            raise ConfigError(
                f"category takes hashable labels such as str or int: {error}; give one label a "
                "sample, as a flat list"
            ) from None
        return lines

    def __missing__(self, label: Any) -> int:
        _check_label(label)
        text = str(label)
        if text not in self._lines and len(self._lines) >= self._limit:
            self._warn(text)
            return self._line(OTHER)
        line = self._line(text)
        # Every NaN is a key of its own, and so may be objects of one text: they can't pile up here.
        if len(self) < self._limit and label == label:  # noqa: PLR0124
            self[label] = line
        return line

    def _line(self, text: str) -> int:
        line = self._lines.setdefault(text, len(self.labels))
        if line == len(self.labels):
            self.labels.append(text)
        return line

    def _warn(self, text: str) -> None:
        if self._told:
            return
        self._told = True
        log.warning(
            "torchvitals: more than %d categories; %r and those that follow are summed up under "
            "%r. Fewer, coarser labels tell more: a bucket instead of the number itself.",
            self._limit,
            text,
            OTHER,
        )


def _batch(losses: Any, category: Any, weight: Any) -> _Batch:
    values = _numbers("losses", losses)
    labels = _labels(category)
    _check_shape("category", (len(labels),) if isinstance(labels, list) else labels.shape, values)
    weights = None
    if weight is not None:
        weights = _numbers("weight", weight)
        _check_shape("weight", weights.shape, values)
        if not isinstance(weights, Tensor) or weights.is_cpu:
            _check_weight(_host(weights))
    return _Batch(values, labels, weights, _ready(values, labels, weights))


def _labels(category: Any) -> Values | list[Any]:
    """Labels as our own copy; one label for all is an array without dimensions."""
    if isinstance(category, str | bytes) or not isinstance(category, Iterable):
        _check_label(category)
        one = np.empty((), dtype=object)
        one[()] = category
        return one
    if isinstance(category, Tensor):
        if category.dtype.is_floating_point or category.dtype.is_complex:
            raise ConfigError(
                f"category takes integer labels, got a tensor of {category.dtype}; "
                "use .long(), or sort the numbers into buckets first"
            )
        return _copied("category", category)
    if isinstance(category, AbstractSet):
        raise ConfigError(
            f"category takes one label a sample in their order, got a {type(category).__name__}; "
            "use a list"
        )
    if isinstance(category, np.ndarray):
        if category.dtype.kind == "f":
            raise ConfigError(
                f"category takes integer labels, got an array of {category.dtype}; "
                "use .astype(int), or sort the numbers into buckets first"
            )
        return category.copy()
    labels = list(category)
    if labels:
        _check_label(labels[0])
    return labels


def _check_label(label: Any) -> None:
    if isinstance(label, Tensor):
        raise ConfigError(
            "category got a list of tensors, whose labels can't be told apart; "
            "use one integer tensor, for instance torch.stack(labels)"
        )
    if not isinstance(label, Hashable):
        raise ConfigError(
            "category takes hashable labels such as str or int, got "
            f"{type(label).__name__}; give one label a sample, as a flat list"
        )


def _numbers(name: str, values: Any) -> Values:
    """Real numbers as our own copy, wherever they live."""
    if isinstance(values, Tensor):
        if values.dtype.is_complex:
            raise ConfigError(f"{name} must be real numbers, got a tensor of {values.dtype}")
        return _copied(name, values)
    if isinstance(values, Sequence) and any(isinstance(value, Tensor) for value in values):
        raise ConfigError(f"{name} got a list of tensors; use torch.stack({name})")
    try:
        array = np.array(values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be numbers of a regular shape: {error}") from None
    if array.dtype.kind not in "fiub":
        raise ConfigError(
            f"{name} must be numbers, one a sample, got {type(values).__name__} of "
            f'{array.dtype}; losses come from a loss function with reduction="none"'
        )
    return array


def _copied(name: str, tensor: Tensor) -> Tensor:
    if hasattr(tensor, "to_local"):
        # Reading it would be a collective, on a thread that must never start one.
        raise ConfigError(f"{name} is a distributed tensor; give this rank's part: .to_local()")
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise ConfigError(f"{name} must be a dense tensor, got {tensor.layout}; use its .values()")
    return tensor.detach().clone()


def _check_shape(name: str, shape: Sequence[int], losses: Values) -> None:
    """`name` belongs to the leading dimensions of the losses, or to all of them flattened."""
    shape, whole = tuple(shape), tuple(losses.shape)
    given = shape
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    if shape != whole[: len(shape)] and shape != (math.prod(whole),):
        raise ConfigError(
            f"{name} of shape {given} does not fit losses of shape {whole}; give one {name} for "
            f"all, one a sample ({whole[0] if whole else 1}) or one a value ({math.prod(whole)}); "
            'losses come from a loss function with reduction="none"'
        )


def _check_weight(weight: NDArray[Any]) -> None:
    # A NaN is both the smallest and the largest, and neither comparison holds.
    if weight.size and not (weight.min() >= 0 and weight.max() < math.inf):
        bad = weight[~((weight >= 0) & (weight < math.inf))]
        raise ConfigError(
            f"weight must be finite and not negative, got {bad[0]}; use 0 for what should not count"
        )


def _ready(*parts: Values | list[Any] | None) -> Callable[[], None] | None:
    """What to wait for before the copies are read, None on the host."""
    devices = {part.device for part in parts if isinstance(part, Tensor) and not part.is_cpu}
    if not devices:
        return None
    events = []
    for device in devices:
        if device.type == "cuda":
            # Copies are made on the training's stream; the reading thread has another one.
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            events.append(event)

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait


def _host(values: Values) -> NDArray[Any]:
    """As an array; waits for the device."""
    if isinstance(values, Tensor):
        values = values.cpu()
        floating = values.dtype.is_floating_point
        return (values.to(torch.float64) if floating else values).numpy()
    return values
