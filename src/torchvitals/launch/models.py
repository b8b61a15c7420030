"""Which modules an optimizer trains, and what to call them.

Until an optimizer takes its first step, a hook for all modules notes which were called. The model
is the outermost called module that holds the optimizer's parameters. Copies (EMA) and models that
are only evaluated hold other tensors, and so are told apart. Where no called module holds them all
(a model whose methods are called, not the model itself), the smallest module that does is looked
for among all that are alive.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

OURS = str(Path(__file__).parents[1]) + os.sep

Params = dict[int, Tensor]
"""Tensors by their id."""


class NotFound(Exception):
    """An optimizer's parameters belong to nothing that could be watched."""


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to watch."""

    models: dict[str, nn.Module]
    """One model is called "", so that its parameters have their own names."""
    optimizers: list[Optimizer]
    called: bool = True
    """False for a stand-in that holds the tensors of functional calls."""


class Calls:
    """Notes which modules were called, and with which parameters in them."""

    def __init__(self) -> None:
        self._modules: dict[int, ref[nn.Module]] = {}
        self._held: dict[int, tuple[ref[Tensor], ref[nn.Module], str]] = {}
        self._handle: RemovableHandle | None = None

    def open(self) -> None:
        """Start noting."""
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._hook)

    def close(self) -> None:
        """Note no more, and forget."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._modules.clear()
        self._held.clear()

    def _hook(self, module: nn.Module, _inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        known = self._modules.get(id(module))
        if known is None or known() is not module:
            self._modules[id(module)] = ref(module)
        for name, tensor in module._parameters.items():
            # `functional_call` puts other tensors there for the length of the call.
            if tensor is not None and id(tensor) not in self._held:
                self._held[id(tensor)] = (ref(tensor), ref(module), name)

    def outermost(self) -> list[nn.Module]:
        """Those that were called and are not part of another one that was."""
        alive = [module for one in self._modules.values() if (module := one()) is not None]
        inner = {id(part) for module in alive for part in module.modules() if part is not module}
        return [module for module in alive if id(module) not in inner]

    def functional(self, wanted: Params) -> nn.Module | None:
        """A stand-in that holds the tensors a module was called with, under its own names."""
        roots = self.outermost()
        found: dict[str, Tensor] = {}
        name = ""
        for key, tensor in wanted.items():
            held, owner, part = self._held.get(key, (lambda: None, lambda: None, ""))
            module = owner()
            if held() is not tensor or module is None:
                continue
            for root in roots:
                inside = next((n for n, m in root.named_modules() if m is module), None)
                if inside is not None:
                    found[f"{inside}.{part}" if inside else part] = tensor
                    name = type(root).__name__
        return stand_in(name, found) if found else None


def find(optimizer: Optimizer, calls: Calls) -> Found:
    """The models that this optimizer trains, and the other optimizers that belong to them.

    Raises:
        NotFound: its parameters are in no module.
    """
    wanted = params_of(optimizer)
    modules, optimizers = alive()
    roots = _roots(wanted, calls, modules)
    if not roots:
        functional = calls.functional(wanted)
        if functional is None:
            raise NotFound(
                f"the parameters of {type(optimizer).__name__} are in no torch.nn.Module"
            )
        return Found({"": functional}, [optimizer], called=False)
    taken, found = dict(wanted), [optimizer]
    called = {id(p) for module in calls.outermost() for p in module.parameters()}
    for other in optimizers:
        theirs = params_of(other)
        if not theirs or theirs.keys() & taken.keys() or not theirs.keys() <= called:
            continue  # a wrapper around one we have, or one of a model that is not in use
        if type(other).step is not Optimizer.step and getattr(type(other).step, "hooked", False):
            found.append(other)
            taken.update(theirs)
            roots += [root for root in _roots(theirs, calls, modules) if root not in roots]
    roots = [root for root in roots if not any(_inside(root, other) for other in roots)]
    return Found(named(roots), found)


def again(optimizer: Optimizer) -> Found:
    """The model of an optimizer that came later: the smallest module with its parameters."""
    modules, _ = alive()
    container = _container(params_of(optimizer), modules)
    if container is None:
        raise NotFound(f"the parameters of {type(optimizer).__name__} are in no torch.nn.Module")
    return Found({"": container}, [optimizer])


def params_of(optimizer: Optimizer) -> Params:
    """Its parameters."""
    return {id(p): p for group in optimizer.param_groups for p in group["params"]}


def can_train(optimizer: Optimizer) -> bool:
    """Whether any of its parameters is not frozen."""
    return any(p.requires_grad for p in params_of(optimizer).values())


def alive() -> tuple[list[nn.Module], list[Optimizer]]:
    """Every module and optimizer there is."""
    modules: list[nn.Module] = []
    optimizers: list[Optimizer] = []
    for thing in gc.get_objects():
        kind = type(thing)  # isinstance() would ask the object, which may be a proxy of anything
        if issubclass(kind, nn.Module) and "_parameters" in thing.__dict__:
            modules.append(thing)
        elif issubclass(kind, Optimizer) and "param_groups" in thing.__dict__:
            optimizers.append(thing)
    return modules, optimizers


def _roots(wanted: Params, calls: Calls, modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The called modules that hold these; one that holds all of them, if there is one."""
    called = [root for root in calls.outermost() if _held(root) & wanted.keys()]
    if len(called) == 1 and wanted.keys() <= _held(called[0]):
        return called
    container = _container(wanted, modules)
    return called if container is None else [container]


def _container(wanted: Params, modules: Iterable[nn.Module]) -> nn.Module | None:
    """The smallest module that holds all of these."""
    holding = [module for module in modules if wanted.keys() <= _held(module)]
    return min(holding, key=lambda module: (len(_held(module)), _size(module)), default=None)


def _held(module: nn.Module) -> set[int]:
    return {id(p) for p in module.parameters()}


def _size(module: nn.Module) -> int:
    return sum(1 for _ in module.modules())


def _inside(module: nn.Module, other: nn.Module) -> bool:
    return module is not other and any(part is module for part in other.modules())


def stand_in(name: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A module that holds these tensors under these names."""
    top: nn.Module = type(name, (nn.Module,), {})()
    for path, tensor in tensors.items():
        *parents, leaf = path.split(".")
        module = top
        for part in parents:
            if part not in module._modules:
                module._modules[part] = nn.Module()
            child = module._modules[part]
            assert child is not None
            module = child
        module._parameters[leaf] = tensor  # type: ignore[assignment]  # a plain tensor will do
    return top


def named(models: list[nn.Module]) -> dict[str, nn.Module]:
    """Several models under the names of the variables that hold them, or of their classes."""
    if len(models) == 1:
        return {"": models[0]}
    found: dict[str, nn.Module] = {}
    for model in models:
        name = _variable(model) or type(model).__name__.lower()
        number, free = 1, name
        while free in found:
            number += 1
            free = f"{name}{number}"
        found[free] = model
    return found


def _variable(model: nn.Module) -> str | None:
    """What the running functions call it."""
    for variables in _scopes(sys._getframe(1)):
        for name, value in variables.items():
            if value is model and isinstance(name, str) and name.isidentifier():
                return name
    return None


def _scopes(frame: FrameType | None) -> Iterator[Mapping[str, Any]]:
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OURS):
            yield frame.f_locals
            owner = frame.f_locals.get("self")
            if hasattr(owner, "__dict__"):
                yield vars(owner)
                if isinstance(owner, nn.Module):
                    yield owner._modules
            yield frame.f_globals
        frame = frame.f_back
