"""Sees the calls of the models themselves: what goes in, what comes out, and in which mode.

A hook for all modules waits for the next call. When it is one of the models', the hook goes away
and a hook on that model takes its place until the call returns: calls inside the model cost
nothing, and between its calls the model carries no trace of us.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

_current_graph_task_id = torch._C._current_graph_task_id
_transformed = torch._C._functorch.peek_interpreter_stack


class Listener(Protocol):
    """Is told of calls. None of these may raise."""

    def called(self, name: str, args: Any, kwargs: Mapping[str, Any], output: Any) -> None:
        """A model was called to be trained; the call has returned."""

    def begins(self, args: Any) -> None:
        """The first call to be trained after a monitored step begins."""

    def evaluated(self, *, training: bool) -> None:
        """A model is called without gradients, in training mode or not."""

    def compiled(self) -> None:
        """A model turns out to be compiled: nothing is told from now on."""


class RootCalls:
    """Tells of calls of the named models, made on the thread that opened it."""

    def __init__(self, models: Mapping[nn.Module, str], listener: Listener) -> None:
        # Scripted models take no hooks: nothing is told of them.
        scripted = torch.jit.ScriptModule
        self._models = {m: name for m, name in models.items() if not isinstance(m, scripted)}
        self._listener = listener
        self._waiting: RemovableHandle | None = None
        self._inside: RemovableHandle | None = None
        self._thread = 0
        self._every_call = False

    def open(self) -> None:
        """Tell of every call."""
        self._every_call = True
        self._wait()

    def open_once(self) -> None:
        """Tell where the next call begins, and no more."""
        self._every_call = False
        self._wait()

    def close(self) -> None:
        """Tell no more; a call that raised an interrupt left its hook behind, which goes too."""
        self._every_call = False
        for handle in (self._waiting, self._inside):
            if handle is not None:
                handle.remove()
        self._waiting = self._inside = None

    def _wait(self) -> None:
        if self._waiting is None and self._models:
            self._thread = get_ident()
            self._waiting = register_module_forward_pre_hook(self._hook)

    def _hook(self, module: nn.Module, args: Any) -> None:
        # In a graph that is being compiled this is all that is traced.
        if torch.compiler.is_compiling() or _transformed() is not None:
            return  # tensors of torch.func hold no values of their own
        name = self._models.get(module)
        if name is None:
            if getattr(module, "_orig_mod", None) in self._models:
                self.close()
                self._models = {}
                self._listener.compiled()
            return
        # Activation checkpointing runs the forward again inside the backward pass: not told.
        if get_ident() != self._thread or _current_graph_task_id() != -1:
            return
        every_call = self._every_call
        self.close()
        trained = torch.is_grad_enabled()
        if not trained:
            self._listener.evaluated(training=module.training)
        elif not every_call and module.training:
            self._listener.begins(args)
        if every_call:
            self._every_call = True
            self._inside = module.register_forward_hook(
                After(self._returned, name if trained and module.training else None),
                with_kwargs=True,
                always_call=True,
            )

    def _returned(self, name: str | None, args: Any, kwargs: Any, output: Any) -> None:
        if self._inside is None:  # closed meanwhile
            return
        self._inside.remove()
        self._inside = None
        if name is not None and output is not None:
            self._listener.called(name, args, kwargs, output)
        if self._every_call:
            self._wait()


class After:
    """The hook on the model while it runs. A copy of the model, or its pickle, has an idle one."""

    def __init__(self, then: Callable[..., None], name: str | None) -> None:
        self._then, self._name = then, name

    def __call__(self, _module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """The model returned, or raised: then the output is None."""
        self._then(self._name, args, kwargs, output)

    def __reduce__(self) -> tuple[Any, ...]:
        return After, (_nothing, None)

    def __deepcopy__(self, _memo: dict[int, Any]) -> After:
        return After(_nothing, None)


def _nothing(*_args: Any) -> None:
    """What an idle hook does."""
