"""`RunBuilder`: a stored run made of columns that are given as functions of the step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchvitals.record import (
    ROOT,
    Event,
    Finding,
    GroupInfo,
    Key,
    ModelInfo,
    ModuleInfo,
    ParameterInfo,
    Row,
    RunInfo,
)
from torchvitals.rules.catalogue import rule
from torchvitals.rules.run import Run
from torchvitals.rules.thresholds import Thresholds
from torchvitals.store import History, RunWriter, open_run

Column = float | Callable[[int], float]


class RunBuilder:
    """A plain stack of `num` Linear layers with an activation after each but the last."""

    def __init__(
        self,
        path: Path,
        *,
        num: int = 4,
        activation: str = "ReLU",
        steps: int = 120,
        every: int = 1,
        optimizer: str = "AdamW",
        options: dict[str, Any] | None = None,
        outside: Sequence[str] = (),
        dtype: str = "float32",
        width: int = 64,
        types: dict[str, str] | None = None,
        total_steps: int | None = None,
    ) -> None:
        self.path = path
        self.steps, self.every = steps, every
        self.layers = [f"layers.{i}" for i in range(num)]
        self.acts = [f"acts.{i}" for i in range(num - 1)]
        self.weights = [f"{name}.weight" for name in self.layers]
        modules = [ModuleInfo(name=ROOT, type="Stack", depth=0)]
        modules += [
            ModuleInfo(name=n, type="Linear", depth=1, parameters=(f"{n}.weight", f"{n}.bias"))
            for n in self.layers
        ]
        modules += [ModuleInfo(name=n, type=activation, depth=1) for n in self.acts]
        modules += [ModuleInfo(name=n, type=t, depth=1) for n, t in (types or {}).items()]
        parameters = [
            ParameterInfo(name=f"{n}.{p}", shape=s, dtype=dtype)
            for n in self.layers
            for p, s in (("weight", (width, width)), ("bias", (width,)))
        ]
        names = tuple(p.name for p in parameters if p.name not in outside)
        given = {"lr": 1e-3, "eps": 1e-8, "betas": [0.9, 0.999], **(options or {})}
        self.info = RunInfo(
            name=path.name,
            watch={"every": every, "total_steps": total_steps},
            models=(ModelInfo(name="", modules=tuple(modules), parameters=tuple(parameters)),),
            groups=(GroupInfo(optimizer=optimizer, index=0, parameters=names, options=given),),
        )
        self.columns: dict[Key, Column] = {}
        self.sparse: dict[Key, dict[int, float]] = {}
        self.events: list[Event] = []
        self.seconds_a_step = 1.0
        self._healthy()

    def _healthy(self) -> None:
        """A run that nothing is wrong with: losses fall, ratios are 3e-3, gradients are even."""
        noise = np.random.default_rng(0).normal(0, 1, 100_000)
        self["loss"] = lambda t: 2.3 * (0.2 + 0.8 * 0.98**t) * (1 + 0.02 * noise[t])
        for k, w in enumerate(self.weights):
            self[f"gradient/{w}/norm"] = lambda t: 0.3 + 0.02 * noise[t]
            self[f"gradient/{w}/rms"] = lambda t, k=k: 0.3 / 64 * (1 + 0.1 * k)
            self[f"parameter/{w}/norm"] = lambda t: 6.0 + 1e-3 * t
            self[f"parameter/{w}/rms"] = 0.1
            self[f"parameter/{w}/std"] = 0.1
            self[f"parameter/{w}/min"] = -0.4
            self[f"parameter/{w}/max"] = 0.4
            self[f"update/{w}/ratio"] = lambda t: 3e-3 * (1 + 0.1 * noise[t])
            self[f"update/{w}/norm"] = 0.02
            self[f"update/{w}/max"] = 1e-3
            self[f"update/{w}/cosine"] = 0.4
            self[f"update/{w}/zero_frac"] = 0.0
            self[f"gradient/{w}/zero_frac"] = 0.0
            self[f"optimizer/{w}/g2_over_v_rms"] = 1.1
            self[f"optimizer/{w}/sqrt_v_over_eps"] = 1e5
            for stat in ("num_nan", "num_posinf", "num_neginf"):
                self[f"gradient/{w}/{stat}"] = 0.0
                self[f"parameter/{w}/{stat}"] = 0.0
        for name in [x for pair in zip(self.layers, [*self.acts, ""], strict=True) for x in pair]:
            if not name:
                continue
            self[f"activation/{name}/rms"] = 1.0
            self[f"activation/{name}/max"] = 4.0
            self[f"activation/{name}/min"] = -4.0
            self[f"activation/{name}/zero_frac"] = 0.5 if name in self.acts else 0.0
            self[f"activation/{name}/num_nan"] = 0.0
            self[f"activation/{name}/num_posinf"] = 0.0
        self[f"gradient/{ROOT}/norm"] = lambda t: 0.6 + 0.03 * noise[t]
        self[f"update/{ROOT}/norm"] = 0.04
        self["optimizer/group0/lr"] = 1e-3
        self["optimizer/group0/weight_decay"] = 0.01
        self["summary/update_ratio/median"] = 3e-3

    def __setitem__(self, key: str, column: Column) -> None:
        self.columns[as_key(key)] = column

    def each(self, pattern: str, column: Column, names: Sequence[str] | None = None) -> None:
        """Set ``gradient/{}/norm`` for all weights, or for these names."""
        for name in self.weights if names is None else names:
            self[pattern.format(name)] = column

    def evals(self, values: dict[int, float], key: str = "eval/val/loss") -> None:
        """Numbers at single steps."""
        self.sparse[as_key(key)] = values

    def write(self, status: str = "finished") -> Path:
        writer = RunWriter.create(self.path, self.info)
        logged = {k: c for k, c in self.columns.items() if k.kind == "scalar"}
        measured = {k: c for k, c in self.columns.items() if k.kind != "scalar"}
        for step in range(1, self.steps + 1):
            now = 1.7e9 + step * self.seconds_a_step
            parts = [logged]
            if step == 1 or step % self.every == 0:
                parts.append(measured)
            parts.append({k: v[step] for k, v in self.sparse.items() if step in v})
            for part in parts:
                known = {k: _at(c, step) for k, c in part.items()}
                known = {k: v for k, v in known.items() if v is not None}
                if known:
                    values = np.array(list(known.values()), dtype=np.float32)
                    writer.append(Row(step, now, tuple(known), values))
        for event in self.events:
            writer.event(event)
        writer.close(status)
        return self.path

    def open(self) -> History:
        if not self.path.exists():
            self.write()
        return open_run(self.path)

    def check(self, name: str, *, at: int | None = None, **limits: float) -> Finding | None:
        """What one rule says of it."""
        with self.open() as history:
            run = Run(history, at=at)
            one = rule(name)
            missing = one.missing(run)
            assert missing is None, missing
            return one.check(run, Thresholds(**limits))


def as_key(text: str) -> Key:
    """``kind/site/stat``, or a number that the user logged."""
    kind, _, rest = text.partition("/")
    site, _, stat = rest.rpartition("/")
    return Key(kind, site, stat) if site else Key.scalar(text)


def _at(column: Column | None, step: int) -> float | None:
    return column(step) if callable(column) else column
