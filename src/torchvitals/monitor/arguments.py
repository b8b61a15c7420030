"""What `watch()` is given, checked before a folder is made or a hook is set.

Every function here returns what was given in the form that `watch()` works with, or raises a
ConfigError that says what is wrong, what was received, and what to give instead.
"""

from __future__ import annotations

import logging
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from torchvitals.guard import Guard
from torchvitals.monitor.reference import copy_of
from torchvitals.probes.tree import ModuleSite, Selection, Tree, compile_patterns, leaves
from torchvitals.record import ConfigError
from torchvitals.rules.thresholds import Thresholds

log = logging.getLogger("torchvitals")

SHOWN = 4
"""Names listed where a pattern matches none of them."""


def check_flags(**flags: object) -> None:
    """Each is True or False: "no" would count as yes."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(
                f"{name} must be True or False, got {flag!r}; without it the default holds"
            )


def check_choice(name: str, given: object, *choices: object, also: object = None) -> None:
    """One of these, and of its type: 1 is not True. `also` is taken, but not advertised."""
    taken = choices if also is None else (*choices, also)
    if not any(type(given) is type(choice) and given == choice for choice in taken):
        *most, last = (repr(choice) for choice in choices)
        raise ConfigError(f"{name} must be {', '.join(most)} or {last}, got {given!r}")


def whole(name: str, given: Any, least: int) -> int:
    """A whole number, numpy's too."""
    try:
        number = None if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = None
    if number is None:
        raise ConfigError(
            f"{name} must be a whole number, got {given!r}; give one that is at least {least}"
        )
    if number < least:
        raise ConfigError(f"{name} must be at least {least}, got {number}")
    return number


def whole_or_none(name: str, given: Any, least: int) -> int | None:
    """A whole number, if there is one."""
    return None if given is None else whole(name, given, least)


def check_kinds(*, backend: object, thresholds: object, on_finding: object) -> None:
    """What is looked up or called later is of a kind that can be."""
    if not isinstance(backend, str):
        raise ConfigError(f"backend must be 'auto', 'native', 'triton' or 'torch', got {backend!r}")
    if not isinstance(thresholds, Thresholds | Mapping | None):
        raise ConfigError(
            f"thresholds must be Thresholds(…) or a dict of limits, got {thresholds!r}; "
            "docs/thresholds.md lists them"
        )
    if on_finding is not None and not callable(on_finding):
        raise ConfigError(
            f"on_finding must be a function that takes a finding, or None, got {on_finding!r}"
        )


def run_folder(run: Any) -> Path | None:
    """The folder named, None where nobody named one."""
    if run is None:
        return None
    text = os.fspath(run) if isinstance(run, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(
            f'run must be the path of a folder, got {run!r}; for instance run="runs/gpt"'
        )
    if not text:
        raise ConfigError(
            "run must be the path of a folder, got ''; leave it out for runs/<date>-<model>"
        )
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        nameable = False
    else:
        nameable = "\0" not in text
    if not nameable:
        raise ConfigError(
            f"run must be the path of a folder, got {text!r}, which holds a character that no "
            "path can; leave that out"
        )
    return Path(run)


def named_models(model: Any) -> dict[str, nn.Module]:
    """Models by name; the only one has none."""
    wanted = "model must be a torch.nn.Module, a list or a dict of them, got "
    if isinstance(model, nn.Module):
        return {"": model}
    if isinstance(model, Mapping):
        models = {str(name): module for name, module in model.items()}
        places = [f"for {name!r}" for name in models]
    elif isinstance(model, Iterable) and not isinstance(model, str | bytes | type | Tensor):
        listed = list(model)
        models = {f"model{index}": module for index, module in enumerate(listed)}
        places = [f"at place {index} of the list" for index in range(len(listed))]
    else:
        raise ConfigError(wanted + _kind(model))
    for module, place in zip(models.values(), places, strict=True):
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{wanted}{_kind(module)} {place}")
    if not models:
        kind = "dict" if isinstance(model, Mapping) else "list"
        raise ConfigError(f"model is an empty {kind}: there is nothing to watch; give a module")
    return {"": next(iter(models.values()))} if len(models) == 1 else models


def _kind(given: object) -> str:
    if given is None:
        return "None"
    if isinstance(given, type):
        return f"the class {given.__name__} (make one of it first: {given.__name__}(…))"
    return type(given).__name__


def listed_optimizers(optimizer: Any) -> list[Optimizer]:
    """All optimizers; none is fine."""
    if optimizer is None:
        return []
    is_one = isinstance(optimizer, Optimizer | str | Tensor) or not isinstance(optimizer, Iterable)
    listed = [optimizer] if is_one else list(optimizer)
    for one in listed:
        if not isinstance(one, Optimizer):
            raise ConfigError(
                f"optimizer must be a torch.optim.Optimizer or a list of them, got {_kind(one)}"
            )
    return listed


def checked_guard(
    guard: Guard | str | bool | None, optimizers: Sequence[Optimizer]
) -> Guard | None:
    """The guard asked for, if it can judge these optimizers."""
    if guard is None or guard is False:
        return None
    if not isinstance(guard, Guard | str | bool):
        raise ConfigError(f"guard must be a Guard, an action or True, got {guard!r}")
    made = guard if isinstance(guard, Guard) else Guard(None if guard is True else str(guard))
    made.check(optimizers)
    return made


def made_reference(choice: Any, models: Mapping[str, nn.Module]) -> nn.Module | None:
    """The model to compare with."""
    if choice is None or isinstance(choice, nn.Module):
        return choice
    if choice != "init":
        raise ConfigError(f'reference must be a model or "init", got {choice!r}')
    if len(models) > 1:
        raise ConfigError(
            'reference="init" takes one model; give the reference of several yourself'
        )
    return copy_of(next(iter(models.values())))


def selection_of(tree: Tree, include: Any, exclude: Any) -> Selection:
    """What `include` and `exclude` choose: something."""
    for name, given in (("include", include), ("exclude", exclude)):
        patterns = () if given is None else compile_patterns(name, given)
        if any(isinstance(pattern.pattern, bytes) for pattern in patterns):
            raise ConfigError(
                f"{name} must be a regular expression or a list of them, got {given!r}; give "
                "texts, not bytes"
            )
    names = [*(site.name for site in tree.parameters), *(site.name for site in tree.modules)]
    if include is not None and not any(map(Selection(include).__contains__, names)):
        raise ConfigError(
            f"include={include!r} matches no parameter and no module: {_names_are(names)}"
        )
    return Selection(include, exclude)


def modules_of(tree: Tree, activations: Any) -> list[ModuleSite]:
    """The modules whose outputs are wanted."""
    if activations is False:
        return []
    if activations is True:
        return leaves(tree)
    wanted = "activations must be True, False or a regular expression, got "
    if not isinstance(activations, str):
        raise ConfigError(f"{wanted}{activations!r}")
    try:
        pattern = re.compile(activations)
    except re.error as error:
        raise ConfigError(f"{wanted}{activations!r} ({error})") from None
    found = [site for site in tree.modules if pattern.match(site.name)]
    if not found:
        names = [site.name for site in tree.modules]
        raise ConfigError(f"activations={activations!r} matches no module: {_names_are(names)}")
    return found


def _names_are(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return (
        f"a pattern is tried from the start of a name (write .*weight for any weight), and the "
        f"names here are {shown}"
    )


def check_weights(tree: Tree) -> None:
    """Parameters without numbers are replaced later by others: watched now, they'd be lost."""
    lazy = [site.name for site in tree.parameters if is_lazy(site.parameter)]
    if lazy:
        raise ConfigError(
            f"{lazy[0]} is a parameter of a lazy module and has no shape yet. Call the model once "
            "with a batch, then make the optimizer and call watch()"
        )
    meta = [site.name for site in tree.parameters if site.parameter.is_meta]
    if meta:
        raise ConfigError(
            f"{meta[0]} is on the meta device and has no numbers yet. Materialise the model "
            "(to_empty and its initialisation, or load_state_dict with assign=True), then make "
            "the optimizer and call watch()"
        )


def check_optimizers(tree: Tree, optimizers: Sequence[Optimizer]) -> None:
    """Warn when an optimizer holds none of the model's parameters: a wiring fault."""
    ours = {id(site.parameter) for site in tree.parameters}
    for optimizer in optimizers:
        if not any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
            log.warning(
                "torchvitals: %s holds none of the watched model's parameters; was it made for "
                "another model, or before this one was replaced?",
                type(optimizer).__name__,
            )
