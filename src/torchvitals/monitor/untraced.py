"""`untraced`: a hook that torch.compile leaves alone, at no cost where nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._compile import _disable_dynamo


def _no_callback() -> Any:
    """What a torch without the question answers: somebody may be compiling."""
    return NotImplemented


try:
    from torch._C._dynamo.eval_frame import get_eval_frame_callback as _callback
except ImportError:  # it is private
    _callback = _no_callback


def untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, not to be traced through: compiled code calls it between two graphs.

    Switching the compiler off and on again around each call costs as much as the hook itself, three
    times a step. Outside compiled code there is nothing to switch off.
    """
    switched_off = _disable_dynamo(hook)

    def call(*args: Any) -> Any:
        if _callback() is None:
            return hook(*args)
        return switched_off(*args)

    # What torch.compiler.disable() leaves on its functions.
    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call
