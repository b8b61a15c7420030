"""Outputs inside compiled regions: an operator of ours that the compiler leaves in its graph.

A hook that torch.compile traces must not read Python state, or the graph breaks or is compiled
anew. This one calls an opaque operator on the output; what it does with it is not the compiler's
business. The graph stays whole, and between monitored steps the operator returns at once (some ten
microseconds a module). The operator has to stand in the graph from the start: watch() must come
before the model's first call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

Viewer = Callable[[int, str, Tensor], None]
"""Takes the number of a module, the way to the tensor in its output, and the tensor."""

_viewers: dict[int, weakref.WeakMethod[Viewer]] = {}
_numbers = count()
_MARK = torch.zeros((), dtype=torch.int8)
"""What the operator says it changes, so that no compiler drops it."""

_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)


@torch.library.custom_op(
    "torchvitals::see",
    mutates_args=("mark",),
    tags=() if _UNSAFE is None else (_UNSAFE,),
)
def see(output: Tensor, mark: Tensor, viewer: int, module: int, path: str) -> None:
    """Show an output to a viewer, if it is there."""
    found = _viewers.get(viewer)
    look = None if found is None else found()
    if look is not None:
        look(module, path, output)


class Window:
    """Hooks in the modules through which a viewer sees their outputs, compiled or not."""

    def __init__(
        self, modules: Mapping[nn.Module, str], viewer: Viewer, *, eval_mode: bool
    ) -> None:
        self._number = next(_numbers)
        self.modules = list(modules)
        _viewers[self._number] = weakref.WeakMethod(viewer)
        self._handles: list[RemovableHandle] = [
            module.register_forward_hook(Pane(self._number, place, eval_mode))
            for place, module in enumerate(self.modules)
        ]

    def remove(self) -> None:
        """Take the hooks out; graphs that are compiled already keep an operator without effect."""
        _viewers.pop(self._number, None)
        while self._handles:
            self._handles.pop().remove()


class Pane:
    """The hook of one module. A copy of the model, or a loaded one, is not watched."""

    def __init__(self, viewer: int, module: int, eval_mode: bool) -> None:
        self.viewer, self.module, self.eval_mode = viewer, module, eval_mode

    def __call__(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        """Called, or traced, after the module's forward."""
        if not (module.training or self.eval_mode):
            return
        if isinstance(output, Tensor):
            if output.is_floating_point():
                see(output.detach(), _MARK, self.viewer, self.module, "")
        elif isinstance(output, (tuple, list)):
            for place, part in enumerate(output):
                if isinstance(part, Tensor) and part.is_floating_point():
                    see(part.detach(), _MARK, self.viewer, self.module, f"[{place}]")

    def __deepcopy__(self, _memo: Any) -> Blind:
        return Blind()

    def __reduce__(self) -> tuple[type[Blind], tuple[()]]:
        return Blind, ()


def _leave_alone(function: Any) -> None:
    """Let the compiler trace a function where it is called, but not compile it by itself."""
    try:
        from torch._dynamo.eval_frame import skip_code
    except ImportError:  # a torch that has it elsewhere: a graph more is compiled
        return
    skip_code(function.__code__)


_leave_alone(Pane.__call__)


class Blind:
    """What is left of a hook in a copy of the model."""

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Does nothing."""
