"""`Tree`: the modules and parameters of the watched models, under clean names.

Names are those of `named_modules()` with the prefixes of wrappers (compile, FSDP, checkpointing,
DDP) taken out, so that a run reads the same however the model was wrapped. A parameter shared by
two modules is one site with two names and counts once in every subtree that holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from torchvitals.record import (
    MISSING,
    ROOT,
    ConfigError,
    Floats,
    ModelInfo,
    ModuleInfo,
    ParameterInfo,
)

WRAPPERS = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_forward_module", "_checkpoint_wrapped_module"}
)
_PARALLEL = ("DistributedDataParallel", "DataParallel")


@dataclass(frozen=True, slots=True)
class ParameterSite:
    """One parameter tensor."""

    name: str
    parameter: nn.Parameter
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleSite:
    """One module, and which parameter sites its subtree holds."""

    name: str
    module: nn.Module
    depth: int
    parameters: tuple[int, ...]
    """Indices into `Tree.parameters`, each once."""
    own: tuple[int, ...]
    """Those it holds itself."""


class Tree:
    """What there is to watch. A model without parameters is refused, unless it may be `bare`."""

    def __init__(self, models: Mapping[str, nn.Module], *, bare: bool = False) -> None:
        self._bare = bare
        self.models = dict(models)
        self.parameters: list[ParameterSite] = []
        self.modules: list[ModuleSite] = []
        self._model_of: list[str] = []
        seen: dict[int, int] = {}
        for model_name, model in self.models.items():
            self._add_model(model_name, model, seen)

    def _add_model(self, model_name: str, model: nn.Module, seen: dict[int, int]) -> None:
        aliases: dict[int, list[str]] = {}
        first = len(self.parameters)
        named = list(self._walk(model_name, model))
        for name, module, _ in named:
            for part, parameter in module.named_parameters(recurse=False):
                full = part if name == ROOT else f"{name}.{part}"
                if id(parameter) in seen:
                    aliases.setdefault(seen[id(parameter)], []).append(full)
                    continue
                seen[id(parameter)] = len(self.parameters)
                self.parameters.append(ParameterSite(full, parameter))
        for index, names in aliases.items():
            site = self.parameters[index]
            kept = tuple(dict.fromkeys(n for n in (*site.aliases, *names) if n != site.name))
            self.parameters[index] = ParameterSite(site.name, site.parameter, kept)
        for name, module, depth in named:
            inside = dict.fromkeys(seen[id(p)] for p in module.parameters() if id(p) in seen)
            own = dict.fromkeys(seen[id(p)] for p in module.parameters(recurse=False))
            self.modules.append(ModuleSite(name, module, depth, tuple(inside), tuple(own)))
            self._model_of.append(model_name)
        empty = len(self.parameters) == first and not any(True for _ in model.parameters())
        if empty and not self._bare:
            raise ConfigError(
                f"the model {model_name or type(model).__name__!r} has no parameters to watch; "
                "call watch() after its layers are built"
            )

    def _walk(self, model_name: str, model: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
        """(clean name, module, depth) in registration order; wrappers themselves are left out."""
        for raw, module in model.named_modules():
            parts = raw.split(".") if raw else []
            if type(model).__name__ in _PARALLEL:
                parts = parts[1:] if parts else parts
            kept = [part for part in parts if part not in WRAPPERS]
            if model_name:
                kept = [model_name, *kept]
            children = dict(module.named_children())
            if set(children) & WRAPPERS or (
                type(module).__name__ in _PARALLEL and "module" in children
            ):
                continue  # its wrapped module takes the name
            yield ".".join(kept) or ROOT, module, len(kept)

    def describe(self) -> tuple[ModelInfo, ...]:
        """The tree as plain data, for the run's information."""
        infos = []
        for model_name in self.models:
            sites = [
                site
                for site, owner in zip(self.modules, self._model_of, strict=True)
                if owner == model_name
            ]
            inside = dict.fromkeys(index for site in sites for index in site.parameters)
            infos.append(
                ModelInfo(
                    name=model_name or type(self.models[model_name]).__name__,
                    modules=tuple(
                        ModuleInfo(
                            name=site.name,
                            type=type(site.module).__name__,
                            depth=site.depth,
                            parameters=tuple(self.parameters[i].name for i in site.own),
                        )
                        for site in sites
                    ),
                    parameters=tuple(
                        ParameterInfo(
                            name=site.name,
                            shape=tuple(site.parameter.shape),
                            dtype=str(site.parameter.dtype).removeprefix("torch."),
                            device=str(site.parameter.device),
                            requires_grad=site.parameter.requires_grad,
                            aliases=site.aliases,
                        )
                        for site in (self.parameters[i] for i in inside)
                    ),
                )
            )
        return tuple(infos)


class Selection:
    """Which names to watch: those that match `include` (all, if None) and not `exclude`.

    Patterns are regular expressions, tried with `re.match` from the start of the clean name.
    """

    def __init__(
        self,
        include: str | Sequence[str] | None = None,
        exclude: str | Sequence[str] | None = None,
    ) -> None:
        self._include = None if include is None else compile_patterns("include", include)
        self._exclude = () if exclude is None else compile_patterns("exclude", exclude)

    def __contains__(self, name: str) -> bool:
        if self._include is not None and not any(p.match(name) for p in self._include):
            return False
        return not any(p.match(name) for p in self._exclude)


def compile_patterns(argument: str, patterns: str | Sequence[str]) -> tuple[re.Pattern[str], ...]:
    """Regular expressions, or a ConfigError that says which one is wrong."""
    try:
        texts = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        return tuple(re.compile(text) for text in texts)
    except (re.error, TypeError) as error:
        raise ConfigError(
            f"{argument} must be a regular expression or a list of them, got {patterns!r} ({error})"
        ) from error


class Subtrees:
    """Sums over module subtrees from sums over parameters, for any subset of the parameters."""

    def __init__(self, tree: Tree, chosen: Sequence[int]) -> None:
        place = {index: line for line, index in enumerate(chosen)}
        lines: list[int] = []
        starts: list[int] = []
        self.names: list[str] = []
        for site in tree.modules:
            inside = [place[index] for index in site.parameters if index in place]
            if inside:
                self.names.append(site.name)
                starts.append(len(lines))
                lines.extend(inside)
        self._lines = np.array(lines, dtype=np.intp)
        self._starts = np.array(starts, dtype=np.intp)

    def add_up(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over each subtree, along the last axis. NaN values add nothing; all NaN give NaN."""
        if not len(self._starts):
            return np.empty((*values.shape[:-1], 0))
        inside = values.take(self._lines, axis=-1)
        if not np.isnan(values).any():
            return np.asarray(np.add.reduceat(inside, self._starts, axis=-1))
        unknown = np.isnan(inside)
        out = np.add.reduceat(np.where(unknown, 0.0, inside), self._starts, axis=-1)
        nothing = np.logical_and.reduceat(unknown, self._starts, axis=-1)
        return np.where(nothing, np.nan, out)

    def norms(self, sumsq: NDArray[np.float64], measured: NDArray[np.bool_]) -> Floats:
        """√ of the sums; not measured where no parameter of the subtree was."""
        out = np.sqrt(self.add_up(sumsq)).astype(np.float32)
        if not measured.all():
            out[..., np.isnan(self.add_up(np.where(measured, 1.0, np.nan)))] = MISSING
        return out


def leaves(tree: Tree) -> list[ModuleSite]:
    """Modules without children: the layers proper."""
    return [site for site in tree.modules if not any(True for _ in site.module.children())]
