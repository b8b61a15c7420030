"""Sees the model's own call: where the forward pass begins, and how large the batch is.

The model carries no trace of it: a hook for all modules waits for the first call, which is the
model's, and takes itself away; the calls inside the model cost nothing. It is put back when the
backward pass has ended, for the next micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle


class CallCatcher:
    """Calls `begin(inputs)` when one of the models is called to be trained."""

    def __init__(self, models: Iterable[nn.Module], begin: Callable[[Any], None]) -> None:
        self._models = set(models)
        self._begin = begin
        self._handle: RemovableHandle | None = None

    def open(self) -> None:
        """Wait for the next call."""
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(self._hook)

    def close(self) -> None:
        """Wait no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _hook(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if module in self._models and module.training and torch.is_grad_enabled():
            self.close()
            self._begin(inputs)
