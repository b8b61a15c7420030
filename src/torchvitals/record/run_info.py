"""`RunInfo`: what a run is made of: its config, command line, code version, machine and models."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """One module of a model's tree."""

    name: str
    """Dotted path with wrapper prefixes stripped; the root is ``[root module]``."""
    type: str
    depth: int
    """Number of modules above it; 0 for the root."""
    parameters: tuple[str, ...] = ()
    """Names of the parameters it owns itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterInfo:
    """One parameter tensor, named by its first place in the tree."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str = ""
    requires_grad: bool = True
    aliases: tuple[str, ...] = ()
    """Other names of the same tensor (shared parameters are counted once)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model: modules and parameters in the order in which the model registers them."""

    name: str
    modules: tuple[ModuleInfo, ...]
    parameters: tuple[ParameterInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """One parameter group of an optimizer; `options` are its numbers at the start (lr, betas …)."""

    optimizer: str
    index: int
    parameters: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """Everything about a run that is known when it starts. All of it is plain JSON."""

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    """The user's own settings (hyper-parameters)."""
    watch: dict[str, Any] = field(default_factory=dict)
    """How the monitor was asked to watch."""
    command: tuple[str, ...] = ()
    directory: str = ""
    git: dict[str, Any] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    models: tuple[ModelInfo, ...] = ()
    groups: tuple[GroupInfo, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RunInfo:
        """The inverse of `to_json`; unknown fields of a newer version are dropped."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known["command"] = tuple(known.get("command", ()))
        known["models"] = tuple(_model(m) for m in known.get("models", ()))
        known["groups"] = tuple(
            GroupInfo(**{**g, "parameters": tuple(g["parameters"])})
            for g in known.get("groups", ())
        )
        return cls(**known)


def _model(data: dict[str, Any]) -> ModelInfo:
    modules = (ModuleInfo(**{**m, "parameters": tuple(m["parameters"])}) for m in data["modules"])
    parameters = (
        ParameterInfo(**{**p, "shape": tuple(p["shape"]), "aliases": tuple(p["aliases"])})
        for p in data["parameters"]
    )
    return ModelInfo(name=data["name"], modules=tuple(modules), parameters=tuple(parameters))
