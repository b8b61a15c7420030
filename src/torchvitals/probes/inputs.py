"""What goes into the models and what comes out of them, over all calls of a step.

    input/<arg>/mean, std, min, max, num_nan, num_inf, zero_frac
                        of the float tensors a model is called with: ``0``, ``1`` … or the keyword;
                        of several models ``<model>.0`` …; inside a tuple or dict ``0[key]``
    input/batch/repeat_frac             share of the samples that were seen before in this epoch
    output/<model>/mean, std            of the first float tensor it returns that has a batch
    output/<model>/batch_std_frac       std over the batch ÷ std over everything

Inputs and outputs are measured when the call returns; outputs of more than `EXACT` elements and
`batch_std_frac` in an evenly spaced sample. Only calls in training mode with gradients count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchvitals.probes.activations import tensors_in
from torchvitals.probes.attention_calls import is_plain
from torchvitals.probes.probe import Distributions, Notes
from torchvitals.probes.repeats import Seen, fingerprints
from torchvitals.probes.root_calls import RootCalls
from torchvitals.probes.sheet import Sheet
from torchvitals.probes.spread import sample_rows
from torchvitals.record import ROOT, Key
from torchvitals.stats import sums as s
from torchvitals.stats.backend import Backend, Measured

EXACT = 1 << 20
"""Outputs up to this many elements are read in full: larger ones are logits, read once already."""
ROWS, ELEMENTS = 64, 64
"""Of an output, for its change over the batch."""
BIG_ROWS, BIG_ELEMENTS = 256, 256
"""Of an output that is not read in full."""
MAX_TENSORS = 16
"""Tensors of a call that are measured."""
MAX_CALLS = 64
"""Calls of a step that are measured."""
MAX_LAYOUTS = 64

INPUT_STATS = ("mean", "std", "min", "max", "zero_frac", "num_nan")
OUTPUT_STATS = ("mean", "std")
_PLACE = {stat: place for place, stat in enumerate(s.STATS)}


@dataclass(slots=True)
class Call:
    """One call of a model."""

    sites: tuple[tuple[str, str], ...]
    """(kind, site) of what was measured."""
    measured: Measured | None
    output: str
    """The output's site."""
    sample: Tensor | None
    """A few rows of the output, a few elements of each."""
    exact: bool
    """The output was measured in full."""


@dataclass(slots=True)
class InputsRaw:
    """The calls of a step."""

    calls: list[Call] = field(default_factory=list)
    batches: list[Tensor] = field(default_factory=list)
    """What stands for their samples."""
    epoch: int = 0


class Inputs:
    """Measures calls of the models while it is open."""

    name = "inputs"

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        backend: Backend,
        *,
        on_error: Callable[[Exception], None],
        on_compile: Callable[[], None],
    ) -> None:
        self._several = len(models) > 1
        self._backend = backend
        self._on_error = on_error
        self._on_compile = on_compile
        self._calls = RootCalls(_roots(models), self)
        self._layouts: dict[Hashable, Any] = {}
        self._raw = InputsRaw()
        self._epoch = 0
        self._mode: bool | None = None
        self._spent = 0.0
        self._seen = Seen()
        self._sheet = Sheet()

    @property
    def header(self) -> tuple[Key, ...]:
        """Columns of what was seen so far."""
        return self._sheet.header

    def open(self) -> None:
        """Start seeing calls."""
        self._calls.open()

    def close(self) -> None:
        """Stop seeing calls."""
        self._calls.close()

    def look_once(self) -> None:
        """See how the next call begins: an evaluation's mode, or one more batch."""
        self._calls.open_once()

    def begin_epoch(self) -> None:
        """Samples may come again from now on."""
        self._epoch += 1

    def take_mode(self) -> bool | None:
        """Whether the last call without gradients was in training mode; None: there was none."""
        mode, self._mode = self._mode, None
        return mode

    def evaluated(self, *, training: bool) -> None:
        """A model is called without gradients."""
        self._mode = training

    def compiled(self) -> None:
        """A model was compiled after all."""
        self._on_compile()

    def begins(self, args: Any) -> None:
        """The step after a monitored one: repeats are often of batches that follow each other."""
        self._mode = None
        self._behind_the_wall(lambda: self._note_batch(list(named_tensors(args, {}))))

    def called(self, name: str, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        """Measure a call."""
        self._mode = None
        self._behind_the_wall(lambda: self._measure(name, args, kwargs, output))

    def _behind_the_wall(self, action: Callable[[], None]) -> None:
        begun = perf_counter()
        try:
            if torch._C._get_tracing_state() is None:
                action()
        except Exception as error:  # nothing may reach the training from here
            self.close()
            self._on_error(error)
        self._spent += perf_counter() - begun

    def _note_batch(self, given: Sequence[tuple[str, Tensor]]) -> None:
        first = next((x for _, x in given if x.dim() and x.numel()), None)
        if first is not None and is_plain(first):
            self._raw.batches.append(fingerprints(first))

    def _measure(self, name: str, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        if len(self._raw.calls) >= MAX_CALLS:
            return
        given = list(named_tensors(args, kwargs))
        self._note_batch(given)
        prefix = f"{name}." if self._several else ""
        found = [
            (("input", prefix + site), x)
            for site, x in given
            if x.is_floating_point() and x.numel() and is_plain(x)
        ][:MAX_TENSORS]
        out, sample, exact = _first_output(output), None, False
        if out is not None:
            exact = out.numel() <= EXACT
            sample = sample_rows(out, *((ROWS, ELEMENTS) if exact else (BIG_ROWS, BIG_ELEMENTS)))
            if exact:
                found.append((("output", name), out))
        measured = None
        if found:
            tensors = tuple(x.detach() for _, x in found)
            measured = self._backend.measure(tensors, layout=self._layout(tensors))
        sites = tuple(site for site, _ in found)
        self._raw.calls.append(Call(sites, measured, name, sample, exact))

    def _layout(self, tensors: tuple[Tensor, ...]) -> Any:
        key = tuple((x.shape, x.dtype) for x in tensors)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) > MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = self._backend.layout(tensors)
        return layout

    def take(self) -> InputsRaw:
        """What this step measured; the next one starts afresh."""
        raw, self._raw = self._raw, InputsRaw()
        raw.epoch = self._epoch
        return raw

    def take_bins(self) -> Distributions:
        """None: it has no distributions."""
        return []

    def take_spent(self) -> float:
        """Seconds spent on calls since the last time this was asked."""
        spent, self._spent = self._spent, 0.0
        return spent

    @property
    def saw_calls(self) -> bool:
        """Whether a model was called in the step under way."""
        return bool(self._raw.calls)

    def shape(self, _raw: InputsRaw) -> Hashable:
        """Steps are read one by one."""
        return ()

    def values(self, raws: Sequence[InputsRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        return self._sheet.rows([self._columns(raw) for raw in raws])

    def _columns(self, raw: InputsRaw) -> dict[Key, float]:
        sums: dict[tuple[str, str], s.Sums] = {}
        changes: dict[str, list[tuple[float, float, float]]] = {}
        inexact: set[str] = set()
        for call in raw.calls:
            if call.measured is not None:
                for where, line in zip(call.sites, call.measured.host().sums, strict=True):
                    sums[where] = s.merge(sums[where], line) if where in sums else line
            if call.sample is not None:
                changes.setdefault(call.output, []).append(over_batch(call.sample))
                if not call.exact:
                    inexact.add(call.output)
        columns: dict[Key, float] = {}
        for (kind, site), line in sums.items():
            derived = s.derive(line)
            for stat in INPUT_STATS if kind == "input" else OUTPUT_STATS:
                columns[Key(kind, site, stat)] = derived[_PLACE[stat]]
            if kind == "input":
                columns[Key(kind, site, "num_inf")] = line[s.POSINF] + line[s.NEGINF]
        for site, found in changes.items():
            means = np.mean(found, axis=0)
            if site in inexact:
                columns[Key("output", site, "mean")] = means[0]
                columns[Key("output", site, "std")] = means[1]
            if not np.isnan(means[2]):
                columns[Key("output", site, "batch_std_frac")] = means[2]
        repeat_frac = self._seen.repeat_frac(raw.epoch, raw.batches)
        if repeat_frac is not None:
            columns[Key("input", "batch", "repeat_frac")] = repeat_frac
        return columns


def _roots(models: Mapping[str, nn.Module]) -> dict[nn.Module, str]:
    """The models and what is inside their wrappers, under the models' names."""
    roots: dict[nn.Module, str] = {}
    for name, model in models.items():
        roots[model] = name or ROOT
        inside = getattr(model, "module", None)  # DDP and its like
        if isinstance(inside, nn.Module) and type(model).__module__.startswith("torch.nn.parallel"):
            roots[inside] = name or ROOT
    return roots


def named_tensors(args: Any, kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a call and their names."""
    for place, value in enumerate(args if isinstance(args, tuple) else (args,)):
        yield from tensors_in(value, str(place))
    for name, value in kwargs.items():
        yield from tensors_in(value, name)


def _first_output(output: Any) -> Tensor | None:
    """The first float tensor with a batch dimension: a loss beside the logits has none."""
    for _, x in tensors_in(output):
        if x.is_floating_point() and x.dim() and x.numel() and is_plain(x):
            return x
    return None


def over_batch(sample: Tensor) -> tuple[float, float, float]:
    """Mean, std, and std over the first dimension ÷ std; NaN for a batch of one.

    What never changes does not change over the batch: 0.
    """
    x = sample.cpu().double().numpy().reshape(len(sample), -1)
    with np.errstate(invalid="ignore", over="ignore"):
        std = float(x.std())
        if len(x) < 2:
            change = float("nan")
        else:
            change = float(np.sqrt(x.var(axis=0).mean())) / std if std > 0 else 0.0 * std
        return float(x.mean()), std, change
