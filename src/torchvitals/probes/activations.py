"""Activations: what the layers put out, over all calls and micro-batches of a step.

They are tapped for the length of a monitored step (`probes.taps`), or seen by one hook for all
modules where they can't be (docs/decisions/0005-global-forward-hook.md): between monitored steps
there is nothing to call, and copies of the model carry no trace of us.

    activation/<module>/<stat>            rms, mean, std, min, max, zero_frac, num_nan …
    activation/<module>/saturated_frac    share at the ends of a bounded activation
    activation/<module>/dead_frac         share of units active in < 1 % of the rows seen lately
    activation/<module>/dormant_frac      share of units with ≤ 2.5 % of the layer's mean magnitude

A module that returns several tensors has sites ``name:out[0]``, ``name:out[key]``.

In steps that are not exact only a part of each large output is read. What a part can't tell, the
ends, how many elements are not finite and the histogram, is left out then; where it does show NaN
or Inf, the outputs that wait with it are read whole after all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

from torchvitals.probes.compiled import compiled_modules, is_compiled
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
    to_float32,
)
from torchvitals.probes.taps import Taps
from torchvitals.probes.tree import ModuleSite
from torchvitals.probes.units import (
    PARTLY_ROWS,
    ROWS,
    UnitCounters,
    UnitSnapshot,
    activity_floor,
    bounded_ends,
)
from torchvitals.probes.waiting import ELEMENTS, PARTLY_ELEMENTS, Site, Waiting
from torchvitals.record import MISSING, Key
from torchvitals.stats import sums as s
from torchvitals.stats.backend import PART_FROM, PART_STRIDE, Backend, Measured
from torchvitals.stats.shards import local

if TYPE_CHECKING:
    from torchvitals.probes.in_graph import Window

STATS = s.STATS[1:]
"""Without the norm: it grows with the batch and says nothing of its own."""

COLUMNS = (*STATS, "saturated_frac", "dead_frac", "dormant_frac")

SMALL = 1 << 21
"""Outputs up to this many elements wait for company: one kernel call for many of them."""

TRIAL_ELEMENTS = 1 << 24
"""Elements of outputs on trial in one step: they are kept to its end."""

MAX_COMPANIES = 256

UNBOUNDED = (-np.inf, np.inf)

UNTOLD = [COLUMNS.index(stat) for stat in ("min", "max", "num_nan", "num_posinf", "num_neginf")]
"""Columns that a part of an output does not tell."""
NON_FINITE = UNTOLD[2:]

_current_graph_task_id = torch._C._current_graph_task_id
_transformed = torch._C._functorch.peek_interpreter_stack
_shape = attrgetter("shape")


class Units:
    """The unit counters of outputs, with at most so many rows looked at in each."""

    def __init__(
        self,
        sites: Sequence[Site],
        tensors: Sequence[Tensor],
        units: UnitCounters,
        most: Sequence[int],
    ) -> None:
        found = [
            None if site.floor is None else units.of(site.line, tensor, site.floor, site.name, rows)
            for site, tensor, rows in zip(sites, tensors, most, strict=True)
        ]
        self.activity = None if all(site.floor is None for site in sites) else found
        self.looks = units.looks_at(a for a in found if a is not None)


class Company:
    """Outputs that are measured together: their lines, ends and unit counters."""

    def __init__(
        self,
        sites: Sequence[Site],
        tensors: Sequence[Tensor],
        units: UnitCounters,
        backend: Backend,
    ) -> None:
        self._sites = list(sites)
        self._shapes = list(map(_shape, tensors))
        self.layout = backend.layout(tensors)
        self.lines = [site.line for site in sites]
        self.ends: NDArray[np.float32] | None = None
        if any(site.ends[0] > -np.inf for site in sites):
            self.ends = np.array([site.ends for site in sites], dtype=np.float32)
        large = [tensor.numel() >= PART_FROM for tensor in tensors]
        self.large = [line for line, is_large in zip(self.lines, large, strict=True) if is_large]
        """Lines of outputs of which a part can be read."""
        self.whole = Units(sites, tensors, units, [ROWS] * len(large))
        self.partly = Units(sites, tensors, units, [PARTLY_ROWS if one else ROWS for one in large])

    def fits(self, sites: list[Site], tensors: tuple[Tensor, ...]) -> bool:
        """Whether it was prepared for these outputs."""
        if self._sites != sites:
            return False
        if self.layout is not None:
            found: bool = self.layout.fits(tensors)
            return found
        return self._shapes == list(map(_shape, tensors))


@dataclass(slots=True)
class ActivationRaw:
    """Measurements of a step: lists of lines and their sums, and the unit counters."""

    parts: list[tuple[list[int], Measured]]
    units: UnitSnapshot | None
    num_sites: int
    lost: list[int]
    """Lines whose tensor was overwritten while it waited."""
    partly: list[int] = field(default_factory=list)
    """Lines of outputs of which a part was read."""


class Activations:
    """Measures the outputs of the chosen modules while it is open."""

    name = "activations"

    def __init__(
        self,
        sites: Sequence[ModuleSite],
        whole: Set[nn.Module],
        backend: Backend,
        roots: Iterable[nn.Module] = (),
        *,
        stride: int,
        eval_mode: bool = False,
        in_graph: bool = False,
        plain: bool = False,
        on_error: Callable[[Exception], None],
        on_compile: Callable[[], None],
    ) -> None:
        self._modules: dict[nn.Module, str] = {site.module: site.name for site in sites}
        self._whole = whole
        self._backend = backend
        self._eval_mode = eval_mode
        self._plain = plain
        """Only the sums are wanted: no units are counted that die or saturate."""
        self._on_error = on_error
        self._on_compile = on_compile
        self._single: dict[nn.Module, Site] = {}
        self._several: dict[tuple[nn.Module, str], Site] = {}
        self._companies: dict[Any, Company] = {}
        self._turn = 0
        self._usual: list[Company] = []
        """The companies of the last step, in their order: this step's are mostly the same."""
        self._sites: list[Site] = []
        self.header: tuple[Key, ...] = ()
        self._mask: NDArray[np.bool_] = np.zeros((0, len(COLUMNS)), dtype=bool)
        names = SiteNames(lambda line: ("activation", self._sites[line].name))
        self._bins = BinBook(stride, names)
        self._units = UnitCounters()
        self._handle: RemovableHandle | None = None
        self._roots = frozenset(roots)
        """The models themselves: when their call returns, nothing more comes to wait for."""
        self._waiting = Waiting()
        self._taps = Taps(
            dict.fromkeys((*self._modules, *self._roots)), self._seen, self._waiting, self._roots
        )
        self._on_trial = 0
        self._trial: list[Site] = []
        self._parts: list[tuple[list[int], Measured]] = []
        self._lost: list[int] = []
        self._spent = 0.0
        self._phase: int | None = None
        self._stride = stride
        self._partly: list[int] = []
        self._window: Window | None = None
        self._looking = False
        self._looks = True
        if in_graph:
            from torchvitals.probes.in_graph import Window

            self._window = Window(self._modules, self._seen_in_graph, eval_mode=eval_mode)

    def begin(self, step: int, *, exact: bool) -> None:
        """A step to be measured begins. Full histograms need whole outputs."""
        partly = not exact and self._stride != 1
        self._phase = step % PART_STRIDE if partly else None
        self._waiting.room = PARTLY_ELEMENTS if partly else ELEMENTS

    def open(self) -> None:
        """Start seeing outputs."""
        self._looking = True
        if self._handle is not None or not self._modules or self._window is not None:
            return
        if self._taps.usable and self._taps.open():
            return
        self._taps.close()
        if any(map(is_compiled, (*self._modules, *self._roots))) or self._runs_compiled():
            self._stop_for_compile()
        else:
            self._handle = register_module_forward_hook(self._hook)

    def _runs_compiled(self) -> bool:
        """Whether torch.compile() was called on one of the models since; looked for once."""
        looks, self._looks = self._looks, False
        return looks and any(found._orig_mod in self._whole for found in compiled_modules())

    def close(self) -> None:
        """Stop seeing outputs."""
        self._looking = False
        self._taps.close()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def leave(self) -> None:
        """Stop for good: nothing is left in the model."""
        self.close()
        if self._window is not None:
            self._window.remove()

    def _seen_in_graph(self, number: int, path: str, output: Tensor) -> None:
        """An output of a model that may be compiled: its memory is reused, so it can't wait."""
        if not self._looking or _current_graph_task_id() != -1 or self._window is None:
            return
        module = self._window.modules[number]
        self._timed(lambda: self._measure_at_once(module, path, output))

    def _measure_at_once(self, module: nn.Module, path: str, output: Tensor) -> None:
        site = self._several.get((module, path))
        if site is None:
            name = self._modules[module] + (f":out{path}" if path else "")
            site = self._several[module, path] = self._new_site(name, module, alone=False)
        self._measure([site], (local(output),))

    def _hook(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        # Inside a compiled region this is all that is traced: the graph stays whole.
        if torch.compiler.is_compiling():
            return
        if module in self._modules or module in self._roots:
            self._seen(module, output)
        elif is_compiled(module) and getattr(module, "_orig_mod", None) in self._whole:
            # The model was compiled after watch(): a global hook would compile it once more.
            self._stop_for_compile()

    def _seen(self, module: nn.Module, output: Any) -> None:
        """A module was called. The way of most calls is short."""
        # Tensors of torch.func hold no values of their own. Activation checkpointing runs the
        # forward again inside the backward pass: not counted.
        if _current_graph_task_id() != -1 or _transformed() is not None:
            return
        waiting = self._waiting
        site = waiting.settled.get(module)
        if (
            site is not None
            and type(output) is Tensor
            and module.training
            and not output.is_inference()
        ):
            waiting.add(site, output)
            if waiting.full:
                self._timed(self.flush)
        elif module.training or self._eval_mode:
            name = self._modules.get(module)
            if name is not None:
                self._timed(lambda: self._see(module, name, output))
        if module in self._roots:
            self._timed(self.flush)

    def _timed(self, action: Callable[[], None]) -> None:
        begun = perf_counter()
        try:
            action()
        except Exception as error:  # nothing may reach the training from here
            self.close()
            self._on_error(error)
        self._spent += perf_counter() - begun

    def _stop_for_compile(self) -> None:
        self.close()
        self._modules = {}
        self._waiting.forget()
        self._on_compile()

    def _see(self, module: nn.Module, name: str, output: Any) -> None:
        if isinstance(output, Tensor):
            site = self._single.get(module)
            if site is None:
                if not is_signal(output):
                    return
                site = self._single[module] = self._new_site(name, module, alone=True)
            self._take(site, output)
            return
        for path, tensor in tensors_in(output):
            site = self._several.get((module, path))
            if site is None:
                if not is_signal(tensor):
                    continue
                site = self._several[module, path] = self._new_site(
                    f"{name}:out{path}", module, alone=False
                )
            self._take(site, tensor)

    def _new_site(self, name: str, module: nn.Module, *, alone: bool) -> Site:
        site = Site(
            name=name,
            line=len(self._sites),
            ends=UNBOUNDED if self._plain else bounded_ends(module),
            floor=None if self._plain else activity_floor(module),
            module=module,
            alone=alone,
        )
        self._sites.append(site)
        return site

    def _take(self, site: Site, tensor: Tensor) -> None:
        if tensor.is_nested and tensor.layout is torch.strided:
            # It has no shape. Its values have no units either.
            self._measure([site], (tensor.values().reshape(-1, 1),))
            return
        if type(tensor) is not Tensor:
            tensor = local(tensor)
        size = tensor.numel()
        # Inference tensors do not count how often they are written into: they never wait.
        waits = site.alone and site.watched is None and not tensor.is_inference()
        if waits and size <= SMALL and tensor.is_cpu:
            # Measured at once; the step's end tells whether waiting would have been safe.
            self._on_trial += size
            if self._on_trial <= TRIAL_ELEMENTS:
                site.watch(tensor)
                self._trial.append(site)
        self._measure([site], (tensor,))

    def flush(self) -> None:
        """Measure the outputs that wait."""
        sites, tensors, lost = self._waiting.take()
        self._lost += [site.line for site in lost]
        if sites:
            self._measure(sites, tensors)

    def _measure(self, sites: list[Site], tensors: tuple[Tensor, ...]) -> None:
        company = self._company(sites, tensors)
        partly = self._phase is not None and bool(company.large)
        units = company.partly if partly else company.whole
        self._units.look(units.looks)
        measured = self._backend.measure(
            tensors,
            bins=None if partly else self._bins.of(company.lines),
            ends=company.ends,
            activity=units.activity,
            layout=company.layout,
            thin=self._plain,
            phase=self._phase if partly else None,
        )
        if partly:
            if measured.finite is False:
                measured = self._backend.measure(tensors, ends=company.ends)
            else:
                self._partly += company.large
        self._parts.append((company.lines, measured))

    def _company(self, sites: list[Site], tensors: tuple[Tensor, ...]) -> Company:
        """What goes with these outputs, prepared once for outputs of these shapes."""
        turn = self._turn
        self._turn += 1
        if turn < len(self._usual) and self._usual[turn].fits(sites, tensors):
            return self._usual[turn]
        key = (tuple(site.line for site in sites), *map(_shape, tensors))
        company = self._companies.get(key)
        if company is None:
            if len(self._companies) > MAX_COMPANIES:
                self._companies.clear()
                self._usual.clear()
            company = Company(sites, tensors, self._units, self._backend)
            self._companies[key] = company
        if self._usual[turn : turn + 1] != [company]:
            self._usual[turn:] = [company]
        return company

    def take(self) -> ActivationRaw:
        """What this step measured; the next one starts afresh."""
        if self._window is not None and not self._sites and self._modules:
            # Compiled and called before watch(): its graph knows nothing of us.
            self._stop_for_compile()
        self.flush()
        for site in self._trial:
            if site.stayed():
                self._waiting.settle(site)
        self._trial.clear()
        self._on_trial = 0
        units = self._units.snapshot()
        raw = ActivationRaw(self._parts, units, len(self._sites), self._lost, self._partly)
        self._parts, self._lost, self._partly = [], [], []
        self._turn = 0
        return raw

    def pieces(self, raw: ActivationRaw) -> dict[str, list[Piece]]:
        """What other ranks saw of other batches."""
        return {"parts": raw.parts}

    def names(self, num: int) -> list[str]:
        """The sites of the first lines, in their order: each rank numbers them by itself."""
        return [site.name for site in self._sites[:num]]

    def state_dict(self) -> dict[str, Any]:
        """What goes on over a resumed run: how often units were active lately."""
        return self._units.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where that state ended."""
        self._units.load_state_dict(state)

    def take_bins(self) -> Distributions:
        """The histograms added up since the last time."""
        return self._bins.take()

    def take_spent(self) -> float:
        """Seconds spent in the hook since the last time this was asked."""
        spent, self._spent = self._spent, 0.0
        return spent

    def shape(self, raw: ActivationRaw) -> Hashable:
        """Which outputs were seen, in which order."""
        return (
            raw.num_sites,
            same_lines(raw.parts),
            tuple(measured.outside is None for _, measured in raw.parts),
            tuple(raw.lost),
        )

    def values(self, raws: Sequence[ActivationRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        first = raws[0]
        if first.num_sites > len(self._mask):
            self._grow(first.num_sites)
        table = blank((len(raws), first.num_sites, len(COLUMNS)))
        if first.parts:
            found, sums, outside = merged([raw.parts for raw in raws])
            lines = places(found.tolist(), first.num_sites)
            set_stats(sums, table, lines, skip=1)
            if outside is not None:
                counts = np.stack([of_step[:, s.COUNT] for of_step in sums])
                with np.errstate(divide="ignore", invalid="ignore"):
                    table[:, lines, len(STATS)] = to_float32(outside / counts)
        for row, raw in zip(table, raws, strict=True):
            if raw.units is not None:
                lines_seen, shares = raw.units.shares()
                row[lines_seen, -2:] = np.where(np.isnan(shares), MISSING, to_float32(shares)).T
        leave_out(table, [raw.partly for raw in raws])
        table[:, first.lost] = MISSING
        wanted = np.flatnonzero(self._mask[: first.num_sites])
        return table.reshape(len(raws), -1).take(wanted, axis=1)

    def _grow(self, num: int) -> None:
        """Columns for sites seen for the first time."""
        sites = self._sites[:num]
        self._mask = np.ones((num, len(COLUMNS)), dtype=bool)
        self._mask[:, -3] = [site.ends[0] > -np.inf for site in sites]
        self._mask[:, -2] = self._mask[:, -1] = [site.floor is not None for site in sites]
        self.header = tuple(
            Key("activation", site.name, stat)
            for site, wanted in zip(sites, self._mask, strict=True)
            for stat, column in zip(COLUMNS, wanted, strict=True)
            if column
        )


def is_signal(tensor: Tensor) -> bool:
    """Whether a tensor holds values worth statistics: indices and masks do not."""
    return not tensor.is_meta and (tensor.is_floating_point() or tensor.is_complex())


def leave_out(table: NDArray[np.float32], partly: Sequence[list[int]]) -> None:
    """Drop what a part of these outputs does not tell; what it shows of NaN and Inf stays.

    `partly`: the lines of each step. They are the same in almost all steps.
    """
    todo = {tuple(lines) for lines in partly if lines}
    for lines in todo:
        steps = np.flatnonzero([tuple(mine) == lines for mine in partly])
        where = np.ix_(steps, np.unique(lines))
        part = table[where]
        clean = ~(part[..., NON_FINITE] > 0).any(axis=-1)
        for column in UNTOLD:
            part[..., column][clean] = MISSING
        table[where] = part


def merged(
    steps: Sequence[list[tuple[list[int], Measured]]],
) -> tuple[NDArray[np.intp], Sequence[s.Sums], NDArray[np.float64] | None]:
    """Lines, and for each step their sums over all calls and how many elements lay at the ends.

    The last is None where no output has ends.
    """
    lines = np.concatenate([np.array(lines, dtype=np.intp) for lines, _ in steps[0]])
    together = list(zip(*steps, strict=True))
    outside = None
    if any(measured.outside is not None for _, measured in steps[0]):
        outside = np.concatenate([_outside(parts) for parts in together], axis=1)
    once = bool((np.diff(lines) > 0).all())  # each output was seen once
    if once and len(together) == 1:
        return lines, each(together[0], "sums"), outside
    sums = np.concatenate([stacked(parts, "sums") for parts in together], axis=1)
    if once:
        return lines, list(sums), outside
    order, starts = runs(lines)
    if outside is not None:
        outside = np.add.reduceat(outside[:, order], starts, axis=1)
    return lines[order][starts], list(s.merge_groups(sums[:, order], starts)), outside


def _outside(parts: Sequence[tuple[list[int], Measured]]) -> NDArray[np.float64]:
    """Of the same part of several steps."""
    if parts[0][1].outside is None:
        return np.zeros((len(parts), len(parts[0][0])))
    return stacked(parts, "outside")


def runs(lines: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """An order that brings equal lines together, and where each run begins."""
    order = np.argsort(lines, kind="stable")
    starts = np.flatnonzero(np.diff(lines[order], prepend=-1))
    return order, starts


def tensors_in(output: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a module's output, with the way to each: ``[0]``, ``[logits]``, ``[1][0]``."""
    if isinstance(output, Tensor):
        yield path, output
    elif isinstance(output, Mapping):
        for key, value in output.items():
            yield from tensors_in(value, f"{path}[{key}]")
    elif isinstance(output, (list, tuple)):
        for index, value in enumerate(output):
            yield from tensors_in(value, f"{path}[{index}]")
    elif is_dataclass(output) and not isinstance(output, type):
        for entry in fields(output):
            yield from tensors_in(getattr(output, entry.name), f"{path}[{entry.name}]")
