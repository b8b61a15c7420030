"""Where torch.compile is at work in and around a model: operators that run there can't be seen."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

from torch import nn

SLOT = "_compiled_call_impl"
"""Where `module.compile()` leaves the compiled call."""
TAP = "_torchvitals_tap"
"""The name of what `probes.taps` puts there instead."""


def is_compiled(module: nn.Module) -> bool:
    """Whether calls of this module go through torch.compile."""
    if type(module).__name__ == "OptimizedModule":
        return True
    call = getattr(module, SLOT, None)
    return call is not None and getattr(call, "__name__", None) != TAP


def anything_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process so far."""
    dynamo = sys.modules.get("torch._dynamo")
    return dynamo is not None and bool(
        dynamo.utils.counters.get("stats") or dynamo.convert_frame.FRAME_COUNTER
    )


def has_compiled(model: nn.Module) -> bool:
    """Whether a module of the model is compiled."""
    return any(map(is_compiled, model.modules()))


def compiled_modules() -> list[nn.Module]:
    """What torch.compile(module) made and ran so far: the module inside doesn't know of it.

    Looks through all objects of the process, some ten milliseconds, if anything was compiled.
    """
    if not anything_compiled():
        return []
    kind = sys.modules["torch._dynamo"].eval_frame.OptimizedModule
    return [found for found in gc.get_referrers(kind) if type(found) is kind]


def calls_compiled(model: nn.Module) -> bool:
    """Whether the model holds a compiled function, or the code of its classes names one.

    Followed through the functions of the packages these classes are from. What is reached another
    way stays unseen: it runs compiled as ever, and the count lacks what was fused there.
    """
    classes = {cls for module in model.modules() for cls in type(module).__mro__}
    packages = {package(cls.__module__) for cls in classes} - {"torch", "builtins"}
    holders = [*model.modules(), *(cls for cls in classes if package(cls.__module__) in packages)]
    held = [value for holder in holders for value in vars(holder).values()]
    waiting = [value for value in held if isinstance(value, FunctionType)]
    seen = set(waiting)
    while waiting:
        function = waiting.pop()
        if runs_compiled(function):
            return True
        for named in named_functions(function):
            near = package(named.__module__) in packages or runs_compiled(named)
            if near and named not in seen:
                seen.add(named)
                waiting.append(named)
    return False


def runs_compiled(function: FunctionType) -> bool:
    """Whether torch.compile wraps this function; torch.compiler.disable leaves a mark, too."""
    marks = vars(function)
    return "_torchdynamo_orig_callable" in marks and "_torchdynamo_disable" not in marks


def named_functions(function: FunctionType) -> Iterator[FunctionType]:
    """Functions named in the code of another: globals, and what it takes from imported modules."""
    names = set(names_in(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType) and package(value.__name__) != "torch":
            inside = [vars(value).get(inner) for inner in names]
        else:
            inside = [value]
        yield from (found for found in inside if isinstance(found, FunctionType))


def names_in(code: CodeType) -> Iterator[str]:
    """Names a function, and what is defined inside it, refers to."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def package(module: str | None) -> str:
    """The top of a module's dotted name."""
    return (module or "").partition(".")[0]
