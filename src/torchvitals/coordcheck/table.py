"""`CoordinateTable`: what a coordinate check measured, as plain rows, and what they say."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchvitals.coordcheck.exponents import Exponent, fit
from torchvitals.record import ConfigError

TERMS = (
    *("effective", "propagating", "change", "activation"),
    *("effective_alignment", "propagating_alignment"),
)
SHOWN = ("effective", "propagating", "activation")
"""Terms that a summary and a plot show unless told."""


@dataclass(frozen=True, slots=True)
class CoordinateRow:
    """One number."""

    width: int
    seed: int
    step: int
    """How many updates the weights have had."""
    module: str
    term: str
    value: float


class CoordinateTable:
    """Sizes of a model's terms over width, seed, step and module.

        effective      RMS of (W_t − W_0) x_t, without bias
        propagating    RMS of W_0 (x_t − x_0)
        change         RMS of the sum of both
        activation     RMS of the output
        effective_alignment     ‖ΔW x_t‖ / (‖ΔW‖ ‖x_t‖)
        propagating_alignment   ‖W_0 Δx‖ / (‖W_0‖ ‖Δx‖)

    RMS is over features, its mean over positions.
    """

    def __init__(self, rows: Sequence[CoordinateRow]) -> None:
        self.rows = list(rows)
        self.widths = sorted({row.width for row in rows})
        self.seeds = sorted({row.seed for row in rows})
        self.steps = sorted({row.step for row in rows})
        self.modules = list(dict.fromkeys(row.module for row in rows))

    def __repr__(self) -> str:
        return f"<CoordinateTable of {len(self.modules)} modules at widths {self.widths}>"

    @cached_property
    def _places(self) -> dict[tuple[str, str, int], dict[tuple[int, int], float]]:
        out: dict[tuple[str, str, int], dict[tuple[int, int], float]] = {}
        for row in self.rows:
            place = out.setdefault((row.module, row.term, row.step), {})
            place[row.width, row.seed] = row.value
        return out

    def values(self, module: str, term: str, step: int | None = None) -> NDArray[np.float64]:
        """(widths, seeds) at a step, the last one unless told; NaN where nothing was measured."""
        step = self._step(step)
        if module not in self.modules or term not in TERMS:
            raise ConfigError(
                f"there is no {term!r} of {module!r} in this table; modules are "
                f"{', '.join(self.modules)}, terms are {', '.join(TERMS)}"
            )
        found = self._places.get((module, term, step), {})
        return np.array(
            [[found.get((width, seed), math.nan) for seed in self.seeds] for width in self.widths]
        )

    def exponent(self, module: str, term: str = "effective", step: int | None = None) -> Exponent:
        """How one term goes with the width: value ∝ width^slope."""
        step = self._step(step)
        slope = fit(self.widths, self.values(module, term, step))
        return Exponent(module, term, step, **asdict(slope))

    def exponents(
        self, terms: Sequence[str] = TERMS, steps: Sequence[int] | None = None
    ) -> list[Exponent]:
        """Of all modules, at all steps where they were measured."""
        return [
            self.exponent(module, term, step)
            for step in (self.steps if steps is None else steps)
            for module in self.modules
            for term in terms
            if (module, term, step) in self._places
        ]

    def to_records(self) -> list[dict[str, Any]]:
        """One dict a row, as data frames take them."""
        return [asdict(row) for row in self.rows]

    def to_json(self) -> str:
        """Rows and exponents as strict JSON; NaN and ±Inf are the texts "NaN", "Infinity" …"""  # noqa: D400
        exponents = [asdict(exponent) for exponent in self.exponents()]
        return json.dumps(_plain({"rows": self.to_records(), "exponents": exponents}), indent=1)

    @classmethod
    def from_json(cls, text: str) -> CoordinateTable:
        """The table again, to plot it later."""
        rows = json.loads(text)["rows"]
        return cls([CoordinateRow(**{**row, "value": float(row["value"])}) for row in rows])

    def summary(self, terms: Sequence[str] = SHOWN, step: int | None = None) -> str:
        """The exponents at a step as a plain table."""
        step = self._step(step)
        cells = [["module", *(term.replace("_", " ") for term in terms)]]
        for module in self.modules:
            found = [self.exponent(module, term, step) for term in terms]
            cells.append([module, *map(_spell, found)])
        room = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(text.ljust(size) for text, size in zip(row, room, strict=True)).rstrip()
            for row in cells
        ]
        seeds = "1 seed" if len(self.seeds) == 1 else f"{len(self.seeds)} seeds"
        return "\n".join(
            [
                f"Exponents of the width at step {step}: widths {', '.join(map(str, self.widths))}"
                f"; {seeds} (lowest … highest)",
                "",
                *lines,
            ]
        )

    def plot(
        self,
        path: str | PathLike[str],
        *,
        predicted: float | Mapping[str, float] = 0.0,
        terms: Sequence[str] = SHOWN,
        modules: str = "",
    ) -> None:
        """Draw sizes over widths, one line a step, and the predicted slope dashed.

        `predicted` is the slope of the effective update that theory gives: 0 under μP, or one for
        each module, by regular expressions on its name: ``{"fc.*": 1, "embed": 0}``. `modules` is a
        regular expression that picks some. The file's ending tells the format.
        """
        from torchvitals.coordcheck.plot import plot

        plot(self, path, predicted=predicted, terms=terms, modules=modules)

    def _step(self, step: int | None) -> int:
        if not self.steps:
            raise ConfigError("the table has no rows: no module was measured")
        if step is None:
            return self.steps[-1]
        if step not in self.steps:
            raise ConfigError(f"step {step} was not measured; there are {self.steps}")
        return step


def _spell(found: Exponent) -> str:
    if found.reason:
        return "–" if found.reason == "not measured" else found.reason
    # z: the sign of a rounding error is none.
    return f"{found.slope:+z.2f} ({found.low:+z.2f} … {found.high:+z.2f})"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list) else value
