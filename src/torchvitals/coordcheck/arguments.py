"""What `coordinate_check` is given, made plain, or a ConfigError before anything is built.

What a function gives can only be seen when it is called: `the_model`, `the_optimizer` and
`the_loss` look at it the first time.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import signature
from itertools import islice
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from torchvitals.record import ConfigError

MakeOptimizer = Callable[[Any], Optimizer]
"""Of the user's own model class, whatever it is."""
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD}


def whole_widths(widths: Sequence[int]) -> list[int]:
    """As a list."""
    found = _whole(widths)
    if not found or min(found) < 1 or len(set(found)) < len(found):
        raise ConfigError(
            f"widths must be different whole numbers above 0, got {widths!r}; for instance "
            "[64, 128, 256]"
        )
    return found


def whole_seeds(seeds: int | Sequence[int]) -> list[int]:
    """Which seeds; a number says how many."""
    if isinstance(seeds, int):
        if seeds < 1:
            raise ConfigError(f"seeds must be at least 1, got {seeds}")
        return list(range(seeds))
    found = _whole(seeds)
    if not found or len(set(found)) < len(found):
        raise ConfigError(
            f"seeds must be at least 1, or different whole numbers such as [0, 1, 2], got {seeds!r}"
        )
    return found


def measured_steps(steps: int, at: Sequence[int] | None) -> list[int]:
    """After which updates to measure."""
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(f"steps must be at least 1, got {steps!r}")
    when = list(range(steps + 1)) if at is None else _whole(at)
    if not when or min(when) < 0 or max(when) > steps:
        raise ConfigError(
            f"at must lie within 0 … steps ({steps}), got {at!r}; for instance at=[0, {steps}]"
        )
    return when


def check_modules(modules: str | None) -> None:
    """A regular expression, or none."""
    try:
        re.compile(modules or "")
    except (re.error, TypeError) as error:
        raise ConfigError(f"modules={modules!r} is not a regular expression: {error}") from error


def check_functions(make_model: Any, loss: Any) -> None:
    """That both can be called with what they will be given."""
    # A model takes one argument, too.
    if isinstance(make_model, nn.Module) or not _takes(make_model, 1):
        raise ConfigError(
            "make_model must be a function of the width that returns a model of that width, got "
            f"{_spell(make_model)}; for instance lambda width: nn.Linear(32, width)"
        )
    if loss is not None and not _takes(loss, 2):
        raise ConfigError(
            f"loss must be a function of model and batch, got {_spell(loss)}; for instance "
            "lambda model, batch: model(batch).square().mean()"
        )


def first_batches(batches: Iterable[Any] | Callable[[], Iterable[Any]], num: int) -> list[Any]:
    """At most so many."""
    made = batches() if callable(batches) and _takes(batches, 0) else batches
    try:
        given = list(islice(iter(made), num))  # type: ignore[arg-type]
    except TypeError as error:
        if isinstance(made, Iterable):
            raise  # of the user's own code, while it makes a batch
        raise ConfigError(
            "batches must be an iterable of batches, or a function without arguments that gives "
            f"one, got {_spell(batches)}"
        ) from error
    if not given:
        raise ConfigError("batches is empty; give at least one batch")
    return given


def builder(optimizer: str | MakeOptimizer, lr: float) -> MakeOptimizer:
    """The function of a model that gives its optimizer."""
    kind = OPTIMIZERS.get(optimizer) if isinstance(optimizer, str) else None
    if kind is not None:
        if not lr > 0:
            raise ConfigError(f"lr must be above 0, got {lr}")
        return lambda model: kind(model.parameters(), lr=lr)
    made: Any = optimizer.func if isinstance(optimizer, partial) else optimizer
    if isinstance(made, type) and issubclass(made, Optimizer):
        raise ConfigError(
            f"optimizer must be a function of the model, got the class {made.__name__}, which "
            "takes parameters; use "
            f"optimizer=lambda model: {made.__name__}(model.parameters(), lr=…)"
        )
    if not callable(optimizer) or not _takes(optimizer, 1):
        raise ConfigError(
            f"optimizer must be a function of the model or one of {', '.join(OPTIMIZERS)}, "
            f"got {_spell(optimizer)}"
        )
    return optimizer


def the_model(made: Any, width: int) -> nn.Module:
    """What `make_model` gave."""
    if not isinstance(made, nn.Module):
        raise ConfigError(
            f"make_model must return a torch.nn.Module, got {_spell(made)} for width {width}; is "
            "it the right function, and does it end with return?"
        )
    return made


def the_optimizer(made: Any) -> Optimizer:
    """What `optimizer` gave: anything that steps as optimizers do."""
    if not all(callable(getattr(made, name, None)) for name in ("zero_grad", "step")):
        raise ConfigError(
            "the function that is optimizer must return an optimizer, with zero_grad() and "
            f"step(), got {_spell(made)}; does it end with return?"
        )
    found: Optimizer = made
    return found


def the_loss(made: Any) -> Tensor:
    """What `loss` gave."""
    if not isinstance(made, Tensor):
        raise ConfigError(
            f"loss must return a tensor to call backward() on, got {_spell(made)}; does it end "
            "with return?"
        )
    return made


def _whole(values: Any) -> list[int]:
    """Whole numbers, numpy's and torch's too; empty for anything else."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        return []


def _takes(function: Any, num: int) -> bool:
    """Whether it can be called with so many arguments; True where nobody can tell."""
    if not callable(function):
        return False
    try:
        found = signature(function)
    except (TypeError, ValueError):  # of some that are written in C
        return True
    try:
        found.bind(*range(num))
    except TypeError:
        return False
    return True


def _spell(value: Any) -> str:
    """Short, as a model's or a tensor's repr is not."""
    if isinstance(value, str | int | float | None):
        return repr(value)
    name = getattr(value, "__name__", None)
    if name is None or not callable(value):
        return f"a {type(value).__name__}"
    try:
        return f"{name}{signature(value)}"
    except (TypeError, ValueError):
        return str(name)
