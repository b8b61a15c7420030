"""`Run`: a stored run as rules read it. All rules together read everything once, in one pass.

Of a long run the first `HEAD` and the last `TAIL` measured steps are read as they are; the time
between them is thinned to `POINTS` buckets that show their value of largest magnitude, so that no
spike is lost and 100,000 steps are read as fast as 2,000.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from torchvitals.record import ROOT, SCALAR, Event, Floats, Key
from torchvitals.rules.loss import LossCurve
from torchvitals.rules.model import Model
from torchvitals.rules.stored import Ints, Stored
from torchvitals.rules.table import Line, Table

RAW = 1536
"""A kind with so few measured steps is read as it is."""
HEAD = 128
TAIL = 384
POINTS = 256
LINE_POINTS = 8_000
"""A single series longer than this is thinned too, its last `TAIL` steps aside."""

BAD = ("num_nan", "num_posinf", "num_neginf")
TABLES = (
    *(("activation", stat) for stat in ("rms", "min", "max", "zero_frac", *BAD[:2])),
    *(("activation", stat) for stat in ("dead_frac", "dormant_frac", "saturated_frac")),
    *(("gradient", stat) for stat in ("norm", "rms", "zero_frac", "missing", *BAD)),
    *(("parameter", stat) for stat in ("norm", "rms", "std", "min", "max", *BAD)),
    *(("parameter", stat) for stat in ("twin_frac", "stable_rank")),
    *(("update", stat) for stat in ("ratio", "cosine", "norm", "max", "zero_frac", *BAD)),
    *(("optimizer", stat) for stat in ("g2_over_v_rms", "sqrt_v_over_eps")),
    *(("input", stat) for stat in ("num_nan", "num_inf")),
    *(("attention", stat) for stat in ("entropy", "max_logit")),
)
"""What the rules read as tables."""

T = TypeVar("T")


class Run:
    """A run, read once: everything asked for is kept."""

    def __init__(self, stored: Stored, *, at: int | None = None, now: float | None = None) -> None:
        self.stored = stored
        self.info = stored.info
        self.at = at
        """What came after this step does not exist; None: nothing is cut off."""
        self.now = time.time() if now is None else now
        self.model = Model(self.info, self.activation_order)
        self._stop = None if at is None else at + 1
        self._tables: dict[tuple[str, str], Table] = {}
        self._lines: dict[Key, Line] = {}
        self._kept: dict[str, Any] = {}

    @cached_property
    def columns(self) -> dict[tuple[str, str], list[str]]:
        """Sites by (kind, stat), in stored order."""
        found: dict[tuple[str, str], list[str]] = {}
        for kind, site, stat in self.stored.keys():
            found.setdefault((kind, stat), []).append(site)
        return found

    def has(self, kind: str, stat: str | None = None, site: str | None = None) -> bool:
        """Whether such a column is there."""
        if stat is None:
            return any(key[0] == kind for key in self.columns)
        sites = self.columns.get((kind, stat), ())
        return bool(sites) if site is None else site in sites

    def activation_order(self) -> list[str]:
        """Modules in the order in which they were first called."""
        return [site.split(":out[")[0] for site in self.columns.get(("activation", "rms"), [])]

    def steps_of(self, kind: str) -> Ints:
        """Steps at which this kind was measured."""
        return self.keep(f"steps of {kind}", lambda: self._cut(self.stored.steps(kind)))

    @cached_property
    def monitored(self) -> Ints:
        """Steps at which tensors were measured."""
        for kind in ("summary", "gradient", "parameter", "activation"):
            if self.has(kind):
                return self.steps_of(kind)
        return np.empty(0, dtype=np.int64)

    @cached_property
    def last_step(self) -> int:
        """The last step that is known of; 0 when there is none."""
        ends = [int(steps[-1]) for steps in (self.monitored, self.loss.line.steps) if len(steps)]
        return max(ends, default=0)

    @cached_property
    def first_step(self) -> int:
        """The first step that is known of."""
        starts = [int(steps[0]) for steps in (self.monitored, self.loss.line.steps) if len(steps)]
        return min(starts, default=0)

    def table(self, kind: str, stat: str) -> Table:
        """One stat of all sites; rows in which nothing was measured are left out."""
        key = (kind, stat)
        if key not in self._tables:
            self._tables[key] = self._read(kind, stat)
        return self._tables[key]

    def parameters(self, kind: str, stat: str) -> Table:
        """The same for the parameters that are to be trained, without modules."""
        return self.keep(
            f"{kind}/{stat} of parameters",
            lambda: self.table(kind, stat).pick(self.model.trainable),
        )

    def weights(self, kind: str, stat: str) -> Table:
        """The same for matrices and kernels alone: no biases, no scales."""
        return self.keep(
            f"{kind}/{stat} of weights", lambda: self.table(kind, stat).pick(self.model.weights)
        )

    def line(self, kind: str, site: str, stat: str) -> Line:
        """One column, empty when it is not there."""
        key = Key(kind, site, stat)
        if key not in self._lines:
            self._lines[key] = self._read_line(key) if self.has(kind, stat, site) else _NOTHING
        return self._lines[key]

    def whole(self, key: Key) -> Line:
        """All of a column, however long: not thinned, and not kept."""
        steps, values = self.stored.series(key, stop=self._stop)
        return Line(steps, values.astype(np.float64))

    def root(self, kind: str, stat: str) -> Line:
        """A column of the whole model."""
        return self.line(kind, ROOT, stat)

    def scalar(self, name: str) -> Line:
        """A number the user logged."""
        return self.line(SCALAR, name, "value")

    def sites(self, kind: str, stat: str) -> list[str]:
        """Sites that have this stat."""
        return self.columns.get((kind, stat), [])

    @cached_property
    def loss(self) -> LossCurve:
        """The training loss: the scalar ``loss``, or the first one whose name has loss in it."""
        names = self.columns.get((SCALAR, "value"), [])
        named = [name for name in names if "loss" in name.lower() and "val" not in name.lower()]
        name = "loss" if "loss" in names else next(iter(named), None)
        line = self.scalar(name) if name is not None else _NOTHING
        return LossCurve(name, line, several=len(named) > 1 or len(self.model.optimizers) > 1)

    @cached_property
    def evals(self) -> dict[tuple[str, str], Line]:
        """Evaluations by (split, name), ``eval/val/loss``, or a scalar named ``val_loss``."""
        found = {
            (site, stat): self.line("eval", site, stat)
            for kind, stat in self.columns
            if kind == "eval" and stat != "train_mode"
            for site in self.sites(kind, stat)
        }
        for name in self.columns.get((SCALAR, "value"), []):
            words = name.lower().replace("/", "_").split("_")
            if {"val", "valid", "validation", "eval", "test"} & set(words) and "loss" in words:
                found.setdefault(("val", "loss"), self.scalar(name))
        return found

    @cached_property
    def validation_loss(self) -> Line:
        """The first validation loss there is."""
        splits = sorted(split for split, name in self.evals if name == "loss")
        chosen = sorted(splits, key=lambda split: (not split.startswith(("val", "valid")), split))
        return self.evals[chosen[0], "loss"] if chosen else _NOTHING

    @cached_property
    def validation_split(self) -> str:
        """Its name."""
        return next((s for (s, n), line in self.evals.items() if line is self.validation_loss), "")

    @cached_property
    def lr(self) -> Line:
        """The learning rate of the group with the most parameters."""
        groups = self.sites("optimizer", "lr")
        if not groups:
            return _NOTHING
        sizes = [len(group.parameters) for group in self.info.groups]
        at = int(np.argmax(sizes)) if len(sizes) == len(groups) else 0
        return self.line("optimizer", groups[at], "lr")

    def lr_at(self, step: int) -> float:
        """The rate used in that step; NaN when it is not known."""
        if not self.lr:
            return float("nan")
        at = int(np.searchsorted(self.lr.steps, step, side="right")) - 1
        return float(self.lr.values[max(at, 0)])

    @property
    def lr_now(self) -> float:
        """The last rate; where it is annealed to nothing, the peak tells more."""
        return float(self.lr.values[-1]) if self.lr else float("nan")

    @property
    def lr_peak(self) -> float:
        """The largest rate so far."""
        return float(np.nanmax(self.lr.values)) if self.lr else float("nan")

    @cached_property
    def total_steps(self) -> int | None:
        """How many there will be, if the user said so."""
        total = self.info.watch.get("total_steps")
        return total if isinstance(total, int) else None

    @property
    def every(self) -> int:
        """Steps between two measured ones."""
        every = self.info.watch.get("every")
        return every if isinstance(every, int) else 1

    @cached_property
    def ended(self) -> bool:
        """Whether no more will come."""
        return self.at is None and self.stored.status != "running"

    @cached_property
    def resets(self) -> list[int]:
        """Steps at which what was normal ends: a resume, a changed learning rate."""
        begun = [a.first_step for a in self.stored.attempts if a.first_step is not None]
        jumps: list[int] = []
        if len(self.lr) > 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                change = np.abs(np.log(self.lr.values[1:] / self.lr.values[:-1]))
            jumps = self.lr.steps[1:][change > np.log(1.5)].tolist()
        return sorted({*begun[1:], *jumps})

    def events(self, kind: str | None = None) -> list[Event]:
        """What happened up to the cut."""
        every: list[Event] = self.keep("events", self.stored.events)
        return [
            event
            for event in every
            if kind in (None, event.kind) and (self.at is None or event.step <= self.at)
        ]

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """What `make` gives, made once."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: T = self._kept[name]
        return kept

    def _cut(self, steps: Ints) -> Ints:
        return steps if self._stop is None else steps[steps < self._stop]

    def _read(self, kind: str, stat: str) -> Table:
        """The table; with the first of a group of kinds all others are read, which costs little."""
        together = [key for key in TABLES if key in self.columns and key not in self._tables]
        wanted = together if (kind, stat) in together else [(kind, stat)]
        keys = [Key(k, site, s) for k, s in wanted for site in self.sites(k, s)]
        steps, values = self._side_by_side(keys)
        begin = 0
        for k, s in wanted:
            sites = tuple(self.sites(k, s))
            part = values[:, begin : begin + len(sites)].astype(np.float64)
            begin += len(sites)
            known = ~np.isnan(part).all(axis=1) if sites else np.zeros(len(part), dtype=bool)
            self._tables[k, s] = Table(steps[known], sites, part[known])
        return self._tables[kind, stat]

    def _side_by_side(self, keys: list[Key]) -> tuple[Ints, Floats]:
        if not keys:
            return np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.float32)
        steps = self.monitored
        if len(steps) <= RAW:
            return self.stored.columns(keys, stop=self._stop)
        first, last = int(steps[HEAD]), int(steps[-TAIL])
        parts = [
            self.stored.columns(keys, stop=first),
            self.stored.columns(keys, start=first, stop=last, points=POINTS),
            self.stored.columns(keys, start=last, stop=self._stop),
        ]
        whole = np.concatenate([part[0] for part in parts])
        return whole, np.concatenate([part[1] for part in parts])

    def _read_line(self, key: Key) -> Line:
        steps, values = self.stored.series(key, stop=self._stop)
        if len(steps) > LINE_POINTS:
            length = -(-len(steps) // LINE_POINTS)
            keep = np.zeros(len(steps), dtype=bool)
            keep[::length], keep[:HEAD], keep[-TAIL:] = True, True, True
            keep |= ~np.isfinite(values)
            # A spike between two kept points must not be lost.
            whole = values[: len(values) // length * length].reshape(-1, length)
            with np.errstate(invalid="ignore"):
                peaks = np.argmax(np.abs(whole), axis=1) + np.arange(len(whole)) * length
            keep[peaks] = True
            steps, values = steps[keep], values[keep]
        return Line(steps, values.astype(np.float64))


_NOTHING = Line(np.empty(0, dtype=np.int64), np.empty(0))
