"""`Outputs`: sees what the modules of some models put out, for metrics of the user's own.

One hook for all modules, in place while a monitored step is under way
(docs/decisions/0005-global-forward-hook.md): the models carry no trace of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.hooks import RemovableHandle

from torchvitals.probes.activations import is_signal, tensors_in

See = Callable[[str, Tensor, bool], None]

_current_graph_task_id = torch._C._current_graph_task_id


class Outputs:
    """Calls `see(name, tensor, is_reference)` for each tensor a known module puts out."""

    def __init__(self, see: See) -> None:
        self._see = see
        self._names: dict[nn.Module, tuple[str, bool]] = {}
        self._handle: RemovableHandle | None = None

    def know(self, names: Mapping[nn.Module, str], *, is_reference: bool) -> None:
        """The modules of a model and what they are called."""
        self.forget(is_reference=is_reference)
        self._names |= {module: (name, is_reference) for module, name in names.items()}

    def forget(self, *, is_reference: bool) -> None:
        """No longer the modules of that model."""
        self._names = {m: entry for m, entry in self._names.items() if entry[1] != is_reference}

    def open(self) -> None:
        """Start seeing."""
        if self._handle is not None:
            return
        me = ref(self)

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            outputs = me()
            if outputs is not None:
                outputs._hook(module, inputs, output)

        # A monitor that is dropped in the middle of a step takes its hook with it.
        self._handle = register_module_forward_hook(hook)
        self._undo = finalize(self, self._handle.remove)

    def close(self) -> None:
        """Stop seeing."""
        if self._handle is not None:
            self._undo()
            self._handle = None

    def _hook(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        entry = self._names.get(module)
        # Activation checkpointing runs the forward again inside the backward pass: not counted.
        if entry is None or _current_graph_task_id() != -1:
            return
        name, is_reference = entry
        if isinstance(output, Tensor):
            if is_signal(output):
                self._see(name, output, is_reference)
            return
        for path, tensor in tensors_in(output):
            if is_signal(tensor):
                self._see(f"{name}:out{path}", tensor, is_reference)
