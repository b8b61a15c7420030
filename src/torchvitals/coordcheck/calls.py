"""`Recorder`: what modules were called with and what they gave, while somebody wants to know.

Hooks for all modules see the calls, so the models carry no trace: they can be copied and saved
while a recorder is open. Tensors are held, not copied, once a first step has shown that nobody
writes into them; those of modules that work in place are copied every time.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakMethod, finalize

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle

_current_graph_task_id = torch._C._current_graph_task_id


@dataclass(slots=True, eq=False)
class Call:
    """One call of a module."""

    training: bool
    settled: bool
    """Its tensors are held as they are; else they are copies."""
    given: Any
    args: Any = ()
    kwargs: Any = field(default_factory=dict)
    output: Any = None
    autocast: dict[str, torch.dtype] = field(default_factory=dict)
    """Device types for which autocast was on, and its dtype."""
    seen: list[tuple[Tensor, int]] = field(default_factory=list)
    """The tensors themselves and their versions."""

    def overwritten(self) -> bool:
        """Whether a tensor was written into since; inference tensors can't tell."""
        return any(tensor.is_inference() or tensor._version != v for tensor, v in self.seen)


class Recorder:
    """Keeps the calls of the modules that `wanted()` names at the time of the call."""

    def __init__(
        self,
        wanted: Callable[[], Container[nn.Module]],
        *,
        needs_output: Callable[[nn.Module], bool] = lambda _module: True,
    ) -> None:
        self._wanted = wanted
        self._needs_output = needs_output
        self._handles: list[RemovableHandle] = []
        self._under_way: dict[nn.Module, list[Call]] = {}
        self._calls: dict[nn.Module, list[Call]] = {}
        self._settled: set[nn.Module] = set()
        self._copies: dict[Any, tuple[Tensor, int, Tensor]] = {}

    def open(self) -> None:
        """Start seeing calls."""
        if not self._handles:
            # A recorder that is dropped while it is open takes its hooks with it.
            self._handles = [
                register_module_forward_pre_hook(_weakly(self._before)),
                register_module_forward_hook(_weakly(self._after), with_kwargs=True),
            ]
            finalize(self, _remove, self._handles)

    def close(self) -> None:
        """Stop seeing calls, and forget them."""
        _remove(self._handles)
        self._handles = []
        self._settled.clear()
        self.forget()

    def forget(self) -> None:
        """Let go of all tensors."""
        self._under_way, self._calls, self._copies = {}, {}, {}

    def take(self) -> dict[nn.Module, list[Call | None]]:
        """The calls of each module in their order; None for one whose tensors were overwritten."""
        out: dict[nn.Module, list[Call | None]] = {}
        for module, calls in self._calls.items():
            changed = [call.overwritten() for call in calls]
            (self._settled.discard if any(changed) else self._settled.add)(module)
            out[module] = [
                None if call.settled and lost else call
                for call, lost in zip(calls, changed, strict=True)
            ]
        self.forget()
        return out

    def _before(self, module: nn.Module, args: Any) -> None:
        # Activation checkpointing runs the forward again inside the backward pass: not counted.
        if module not in self._wanted() or _current_graph_task_id() != -1:
            return
        call = Call(training=module.training, settled=module in self._settled, given=args)
        call.args = self._keep(call, args)
        self._under_way.setdefault(module, []).append(call)

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        waiting = self._under_way.get(module)
        if not waiting or _current_graph_task_id() != -1:
            return
        call = waiting.pop()
        if args is not call.given:  # a hook of the module's own gave it something else
            call.args = self._keep(call, args)
        call.given = None
        call.kwargs = self._keep(call, kwargs)
        if self._needs_output(module):
            call.output = self._keep(call, output)
        for device in {tensor.device.type for tensor, _ in call.seen}:
            if torch.is_autocast_enabled(device):
                call.autocast[device] = torch.get_autocast_dtype(device)
        self._calls.setdefault(module, []).append(call)

    def _keep(self, call: Call, value: Any) -> Any:
        return tree_map_only(Tensor, lambda tensor: self._hold(call, tensor), value)

    def _hold(self, call: Call, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()  # shares its version with the original, not the graph
        version = -1 if tensor.is_inference() else tensor._version
        call.seen.append((tensor, version))
        if call.settled:
            return tensor
        # What one module puts out the next one takes in: one copy serves both.
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        known = self._copies.get(place)
        if known is None or known[1] != version or version == -1:
            known = self._copies[place] = (tensor, version, tensor.clone())
        return known[2]


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Calls the method as long as its object lives."""
    found = WeakMethod(method)

    def call(*args: Any) -> None:
        if torch.compiler.is_compiling():  # in a graph that is being compiled this is all
            return
        living = found()
        if living is not None:
            living(*args)

    return call


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
        # PyTorch forgets this one, and would warn of hooks for all modules ever after.
        torch_modules._global_forward_hooks_with_kwargs.pop(handle.id, None)
