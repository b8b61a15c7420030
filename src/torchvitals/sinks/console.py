"""`Console`: every so many steps a line of summary, and under it the layers that stand out.

    step 100  loss 2.31  lr 3.0e-04  gradient norm 1.24  update ratio 1.1e-03  41.2 steps/s
      largest gradients  blocks.0.attn.proj.weight 0.910 · head.weight 0.412 · …
      update ratio of blocks.5.mlp.fc.weight is 0.123, above 0.1: lr may be too high
      3 parameters are frozen, for instance blocks.2.mlp.down.weight

Findings, guard decisions and errors are printed as they come. Progress bars of tqdm stay whole.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, TextIO

from torchvitals.record import (
    ROOT,
    ConfigError,
    Event,
    HistogramRow,
    Key,
    Row,
    RunInfo,
    Severity,
)
from torchvitals.record.bins import percentiles
from torchvitals.sinks.sink import Sink
from torchvitals.sinks.texts import short

TOO_HIGH, TOO_LOW = 0.1, 1e-7
"""Update ratios that are worth a line."""
SHOWN = ("finding", "guard", "alert", "error", "degraded", "not_seen")
"""Kinds of events worth a line."""
POINTS = {"min": 0.0, "p25": 25.0, "median": 50.0, "p75": 75.0, "p95": 95.0, "max": 100.0}
HEAD = (
    ("loss", Key.scalar("loss")),
    ("val loss", Key("eval", "val", "loss")),
    ("lr", Key("optimizer", "group0", "lr")),
    ("gradient norm", Key("gradient", ROOT, "norm")),
    ("update ratio", Key("update", ROOT, "ratio")),
    ("", Key("speed", "run", "steps_per_s")),
    ("", Key("speed", "run", "tokens_per_s")),
)
UNITS = {"steps_per_s": " steps/s", "tokens_per_s": " tokens/s"}


class Console(Sink):
    """Prints to the terminal (stderr, as logging does) every `every` steps.

    Every `distributions_every` steps the percentiles of the worst layers' gradients are added.
    """

    name: ClassVar[str] = "the console"

    def __init__(
        self,
        every: int = 100,
        *,
        top: int = 3,
        distributions_every: int = 1000,
        file: TextIO | None = None,
    ) -> None:
        for what, number in (("every", every), ("distributions_every", distributions_every)):
            if number < 1:
                raise ConfigError(f"{what} must be at least 1, got {number}")
        self.series = r"^(summary/.*|update/.*/ratio|gradient/.*/histogram)$"
        self._every = every
        self._top = top
        self._distributions_every = distributions_every
        self._file = file
        self._names: list[str] = []
        self._parameters: frozenset[str] = frozenset()
        self._newest: dict[Key, float] = {}
        self._histograms: HistogramRow | None = None
        self._next = 0
        self._next_distributions = distributions_every

    def open(self, info: RunInfo, folder: Path) -> None:
        """Learn the parameters' names."""
        found = (p.name for model in info.models for p in model.parameters)
        self._names = list(dict.fromkeys(found))
        self._parameters = frozenset(self._names)

    def write(self, row: Row) -> None:
        """Print, when enough steps have passed since the last time and layers were measured."""
        values = dict(zip(row.header, row.values.tolist(), strict=True))
        self._newest.update(values)
        if row.step < self._next or Key("summary", "monitor", "overhead_s") not in values:
            return
        self._next = (row.step // self._every + 1) * self._every
        lines = [self._head(row.step), *self._worst(values), *self._ratios(values)]
        if row.step >= self._next_distributions and self._histograms is not None:
            at = self._distributions_every
            self._next_distributions = (row.step // at + 1) * at
            lines += self._distributions(values, self._histograms)
        self._print(lines)

    def histograms(self, row: HistogramRow) -> None:
        """Kept until percentiles are due."""
        self._histograms = row

    def event(self, event: Event) -> None:
        """Print what matters."""
        finding = event.data.get("finding")
        told = event.kind in SHOWN and event.data.get("state") != "updated"
        if told and not (finding and finding.get("severity") == Severity.INFO):
            state = f" {event.data['state']}" if "state" in event.data else ""
            self._print([f"step {event.step}  {event.kind}{state}: {event.text}"])

    def _head(self, step: int) -> str:
        parts = [f"step {step}"]
        for label, key in HEAD:
            value = self._newest.get(key)
            if value is not None:
                parts.append(f"{label} {short(value)}{UNITS.get(key.stat, '')}".strip())
        return "  ".join(parts)

    def _worst(self, values: dict[Key, float]) -> list[str]:
        found = list(self._offenders(values, "largest_gradient", "norm"))[: self._top]
        if not found:
            return []
        return ["  largest gradients  " + " · ".join(f"{n} {short(v)}" for n, v in found)]

    def _ratios(self, values: dict[Key, float]) -> list[str]:
        """What is really wrong, the worst few; a learning rate of 0 freezes on purpose."""
        ratios = {k.site: v for k, v in values.items() if k.kind == "update" and k.stat == "ratio"}
        known = [(site, ratio) for site, ratio in ratios.items() if site in self._parameters]
        high = sorted((r, s) for s, r in known if not r <= TOO_HIGH)[::-1]
        low = sorted((r, s) for s, r in known if 0 < r < TOO_LOW)
        lines = [
            f"  update ratio of {site} is {short(ratio)}, {words}"
            for chosen, words in (
                (high, f"above {TOO_HIGH}: lr may be too high"),
                (low, f"below {TOO_LOW:.0e}: lr may be too low"),
            )
            for ratio, site in chosen[: self._top]
        ]
        frozen = values.get(Key("summary", "update_ratio", "num_frozen"), 0.0)
        still = [site for site, ratio in known if ratio == 0]
        if frozen and isfinite(frozen) and not self._resting():
            example = f", for instance {still[0]}" if still else ""
            lines.append(f"  {frozen:.0f} parameters are frozen{example}")
        return lines

    def _resting(self) -> bool:
        """All learning rates are 0."""
        rates = [v for k, v in self._newest.items() if k.kind == "optimizer" and k.stat == "lr"]
        return bool(rates) and not any(rates)

    def _distributions(self, values: dict[Key, float], row: HistogramRow) -> list[str]:
        lines = []
        place = {site: line for line, (kind, site) in enumerate(row.sites) if kind == "gradient"}
        for name, _ in list(self._offenders(values, "largest_gradient", "norm"))[: self._top]:
            if name in place:
                found = percentiles(row.counts[place[name]], list(POINTS.values()))
                numbers = zip(POINTS, found.tolist(), strict=True)
                spread = "  ".join(f"{label} {short(value)}" for label, value in numbers)
                lines.append(f"  gradient of {name}  {spread}")
        return lines

    def _offenders(
        self, values: dict[Key, float], which: str, stat: str
    ) -> Iterable[tuple[str, float]]:
        rank = 1
        while (place := values.get(Key("summary", f"{which}.{rank}", "parameter"))) is not None:
            if int(place) < len(self._names):
                yield self._names[int(place)], values[Key("summary", f"{which}.{rank}", stat)]
            rank += 1

    def _print(self, lines: list[str]) -> None:
        file = self._file if self._file is not None else sys.stderr
        text = "\n".join(lines)
        tqdm: Any = sys.modules.get("tqdm")
        if tqdm is not None and file in (sys.stderr, sys.stdout):
            tqdm.tqdm.write(text, file=file)
        else:
            print(text, file=file, flush=True)
