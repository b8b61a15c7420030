"""`Taps`: see what modules put out, at a fifth of what a hook costs.

Any hook, of a module or of all modules, sends the call down torch's slow path: five microseconds a
module. But `module(x)` first asks the module for `_compiled_call_impl`, what `module.compile()`
left there. A tap stands in that place for the length of a monitored step: it makes the ordinary
call, looks at what came out and hands it on. torch leaves this attribute out of copies and pickles,
so `deepcopy(model)` and `torch.save(model)` see nothing of it. Taps are functions of the C kernel
where there is one, at half of what they cost in Python.

Not used, and a hook for all modules instead (docs/decisions/0016-taps.md),
- once anything was compiled in this process: compiled code would notice what comes and goes there;
- where `nn.DataParallel` may be at work, in one process with several accelerators: its replicas
  have the attributes of the module they are made from, and would call that one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Set
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, distributed, nn

from torchvitals.probes.compiled import SLOT, TAP, anything_compiled, is_compiled
from torchvitals.probes.waiting import NUMBER, Waiting
from torchvitals.stats.native.tap import Parts, tap_maker

_is_compiling = torch.compiler.is_compiling
_current_graph_task_id = torch._C._current_graph_task_id
_transformed = torch._C._functorch.peek_interpreter_stack


class Taps:
    """Tells `seen(module, output)` of every call of these modules while it is open.

    Small outputs that may wait are not told, but added to those that do, unless the module is one
    of the `roots`.
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        seen: Callable[[nn.Module, Any], None],
        waiting: Waiting | None = None,
        roots: Set[nn.Module] = frozenset(),
    ) -> None:
        found = waiting if waiting is not None else Waiting()
        native = tap_maker(TAP, NUMBER) if _told_of_compiling() else None
        self._taps = [
            (
                module,
                _tap(module, seen, waits)
                if native is None
                else native(_parts(module, seen, waits)),
            )
            for module in modules
            for waits in [Waiting() if module in roots else found]
        ]
        self._never = replicas_possible() or any(is_compiled(module) for module, _ in self._taps)
        self.is_open = False

    @property
    def usable(self) -> bool:
        """Whether the modules may be tapped now."""
        return not self._never and not anything_compiled()

    def open(self) -> bool:
        """Begin; False if one of the modules was compiled meanwhile, and nothing is told then."""
        if not self.is_open:
            self.is_open = True
            _open.add(self)
            _told_of_compiling()
            for module, tap in self._taps:
                if module.__dict__.setdefault(SLOT, tap) is not tap:
                    self._never = True
                    self.close()
                    return False
        return True

    def close(self) -> None:
        """End; what somebody else put there meanwhile stays."""
        if self.is_open:
            self.is_open = False
            _open.discard(self)
            for module, tap in self._taps:
                if module.__dict__.get(SLOT) is tap:
                    del module.__dict__[SLOT]


_open: WeakSet[Taps] = WeakSet()


def _close_all(_args: object) -> None:
    """Something is about to be compiled: it must not find taps, which it could not look into."""
    for taps in list(_open):
        taps.close()


def _told_of_compiling() -> bool:
    """Whether `_close_all` is called in time; dynamo forgets it when it is reset."""
    handler: Any = getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)
    if handler is None:
        return False
    if _close_all not in handler.start_callbacks:
        handler.register_start_callback(_close_all)
    return True


def replicas_possible() -> bool:
    """Whether `nn.DataParallel` has devices to make replicas on, and no other way is taken."""
    devices: Any = getattr(torch, "accelerator", None) or torch.cuda
    if devices.device_count() <= 1:
        return False
    return not (distributed.is_available() and distributed.is_initialized())


def _tap(
    module: nn.Module, seen: Callable[[nn.Module, Any], None], waiting: Waiting
) -> Callable[..., Any]:
    call: Callable[..., Any] = module._call_impl
    settled, tensors = waiting.light.get, waiting.tensors
    add_site, add_tensor = waiting.sites.append, waiting.tensors.append
    add_version = waiting.versions.append

    def tap(*args: Any, **kwargs: Any) -> Any:
        output = call(*args, **kwargs)
        # While a graph is traced this is all that goes into it.
        if not _is_compiling():
            site = settled(module)
            # This is run for every module: what `seen` asks, with as few words as can be.
            if (
                site is not None
                and type(output) is Tensor
                and module.training
                and _current_graph_task_id() == -1
                and _transformed() is None
                and len(tensors) < NUMBER
                and not output.is_inference()
            ):
                add_site(site)
                add_tensor(output)
                add_version(output._version)
            else:
                seen(module, output)
        return output

    tap.__name__ = TAP
    return tap


def _parts(module: nn.Module, seen: Callable[[nn.Module, Any], None], waiting: Waiting) -> Parts:
    """What the same function in C needs."""

    def told(module: nn.Module, output: Any) -> None:
        if not _is_compiling():  # dynamo says so before; torch.export may do without it
            seen(module, output)

    lists = waiting.sites, waiting.tensors, waiting.versions
    return Parts(module._call_impl, module, told, waiting.light, *lists)
