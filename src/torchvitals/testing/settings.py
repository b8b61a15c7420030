"""`Settings`: the numbers of a training that a user would write at the top of a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(kw_only=True)
class Settings:
    """What a training is made with. Faults change it before anything is built."""

    seed: int
    steps: int = 600
    batch_size: int = 64
    optimizer: str = "adamw"
    """adamw or sgd."""
    lr: float = 1e-3
    momentum: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    schedule: str = "constant"
    """constant, cosine, cyclical or wsd (warm-up, stable, decay)."""
    clip_norm: float | None = None
    reduction: str = "mean"
    dtype: str = "float32"
    width: int = 64
    depth: int = 3
    activation: str = "relu"
    norm: bool = True
    dropout: float = 0.0
    num_samples: int = 6000
    length: int = 32
    """Of a sequence."""
    shift: bool = False
    """The data is of another kind from some step on."""
    every: int = 5
    eval_every: int = 50

    def config(self) -> dict[str, Any]:
        """What a user would hand to ``watch(config=…)``: hyperparameters, nothing of the fault."""
        told = ("batch_size", "optimizer", "lr", "weight_decay", "width", "depth", "dropout")
        settings = asdict(self)
        return {name: settings[name] for name in told}


_SAME = {
    "learning_rate": "lr",
    "max_norm": "clip_norm",
    "clip": "clip_norm",
    "clip_limit": "clip_norm",
    "warmup": "warmup_steps",
    "max_steps": "steps",
    "total_steps": "steps",
    "precision": "dtype",
}
_FIELDS = {field.name for field in fields(Settings)} - {"seed"}


def apply_change(settings: Settings, change: Mapping[str, Any]) -> list[str]:
    """Set what a finding's `change` recommends; returns the names of the settings that were set.

    ``{"lr": {"from": 0.3, "to": 0.003}}`` sets `lr`; a bare number instead of the inner dict is
    taken as the new value. What is no setting of the training is left out.
    """
    done = []
    for name, wanted in change.items():
        if name in {"betas", "beta"} and isinstance(wanted, Mapping):
            name, wanted = "beta2", {"to": _last(wanted.get("to"))}  # noqa: PLW2901
        field = _SAME.get(name, name)
        value = wanted.get("to") if isinstance(wanted, Mapping) else wanted
        if field not in _FIELDS or value is None:
            continue
        kind = type(getattr(settings, field))
        setattr(settings, field, kind(value) if kind in {int, float} else value)
        done.append(field)
    return done


def _last(value: Any) -> Any:
    return value[-1] if isinstance(value, list | tuple) else value
