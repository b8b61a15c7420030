"""`FlopCounter`: the floating-point operations of one optimizer step, counted once.

    flops of a step = Σ over its forward calls (3 × forward flops of the call)

A multiply-add is two operations; matrix products, convolutions, attention and recurrent layers are
counted by their formulas, what is elementwise is not. The backward pass is taken as twice the
forward, the usual convention of MFU: recomputation under activation checkpointing is not counted,
what frozen layers save is not taken off. A model without trainable parameters counts once. Only
calls in training mode with gradients on count, and all micro-batches of the step do.

While a step is counted, two hooks stand on all modules (docs/decisions/0005-global-forward-hook.md
says why not on the model) and a dispatch mode sees each operator of a call. Its formulas are those
of torch.utils.flop_counter. torch's own `FlopCounterMode` would not do here: a compiled function
that first runs under it stays uncompiled for good, `flex_attention` raises under it, and it counts
neither recurrent layers nor attention on processors. Ours calls every operator as it came.

Compiled models are not counted: their operators are not to be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

from torchvitals.probes.compiled import calls_compiled, compiled_modules, has_compiled, is_compiled

BACKWARD = 2
"""A backward pass as multiples of the forward: one product for the inputs, one for the weights."""

MAX_IDLE_STEPS = 16
"""Steps in which the models were not called, or not as a whole, before the counter gives up."""

_current_graph_task_id = torch._C._current_graph_task_id
_no_dispatch = torch._C._disabled_torch_dispatch_impl
_composite_key = torch._C.DispatchKey.CompositeImplicitAutograd

_counting: FlopCounter | None = None
"""Whose mode is in force: two monitors of one model take turns, as modes must nest."""


class FlopCounter:
    """Waits for a whole step, counts it, tells the number and is gone."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        on_counted: Callable[[int], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._roots = frozenset(models)
        self._on_counted = on_counted
        self._on_error = on_error
        self._armed = False
        self._handles: list[RemovableHandle] = []
        self._tally: Tally | None = None
        self._caller: nn.Module | None = None
        self._depth = 0
        self._thread = 0
        self._idle = 0
        self._forget()
        self.flops: int | None = None
        """Of one step; None until it is known."""

    def open(self) -> bool:
        """Wait for a step to begin; False, and no count, if parts of the models are compiled.

        The hooks come with `begin_step`. Call that first when a step is over: a model is often
        compiled between watch() and its first call, and then torch warns of hooks like ours.
        """
        self._armed = self.flops is None and not any(
            has_compiled(root) or calls_compiled(root) for root in self._roots
        )
        return self._armed

    def begin_step(self) -> None:
        """Calls from here on belong to a new step."""
        if not self._armed:
            return
        self._recover()
        self._forget()
        if any(map(has_compiled, self._roots)):
            self.close()
        elif self._handles:
            return
        elif any(map(self._holds_root, compiled_modules())):
            self.close()
        else:
            self._handles = [
                register_module_forward_pre_hook(self._before),
                register_module_forward_hook(self._after, always_call=True),
            ]

    def end_step(self) -> int | None:
        """Its count if it was seen as a whole; else None, and the next is tried."""
        if not self._handles or self._recover():
            return None
        calls, total, missed = self._calls, self._total, self._missed
        self._forget()
        if missed or calls == 0:
            self._idle += 1
            if self._idle >= MAX_IDLE_STEPS:
                self.close()
            return None
        self.close()
        if total == 0:
            # Nothing with a formula: custom kernels, or replicas in other threads.
            return None
        self.flops = total
        self._on_counted(total)
        return total

    def close(self) -> None:
        """Take the hooks away, whether a step was counted or not."""
        self._armed = False
        self._recover()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _forget(self) -> None:
        self._calls = self._total = 0
        self._missed = False

    def _holds_root(self, module: nn.Module) -> bool:
        return not self._roots.isdisjoint(module.modules())

    def _before(self, module: nn.Module, _args: Any) -> None:
        # In a graph that is being compiled there is nothing to count, and nothing of us to trace.
        if torch.compiler.is_compiling():
            return
        if module not in self._roots:
            if is_compiled(module) and self._holds_root(module):
                self.close()
            return
        try:
            if self._caller is None:
                if module.training and torch.is_grad_enabled() and _current_graph_task_id() == -1:
                    self._enter(module)
            elif self._thread != get_ident():
                self._missed = True
            elif module is self._caller:
                self._depth += 1
        except Exception as error:  # nothing may reach the training from here
            self._fail(error)

    def _after(self, module: nn.Module, _args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if module is not self._caller or self._thread != get_ident():
            return
        if self._depth:
            self._depth -= 1
            return
        try:
            self._take(module)
            # What torch hands over when the forward raised: the batch may be tried again.
            self._missed |= output is None
        except Exception as error:  # nothing may reach the training from here
            self._fail(error)

    def _enter(self, module: nn.Module) -> None:
        global _counting
        if has_compiled(module):
            self.close()
        elif _counting is not None:
            self._missed = True
        else:
            tally = Tally()
            tally.__enter__()  # type: ignore[no-untyped-call]
            _counting, self._tally = self, tally
            self._caller, self._thread, self._depth = module, get_ident(), 0

    def _take(self, module: nn.Module) -> None:
        tally = self._leave()
        if tally.error is not None:
            raise tally.error
        trains = any(p.requires_grad for p in module.parameters())
        self._calls += 1
        self._total += tally.flops * (1 + BACKWARD if trains else 1)

    def _leave(self) -> Tally:
        global _counting
        tally, self._tally, self._caller, _counting = self._tally, None, None, None
        assert tally is not None
        tally.leave()
        return tally

    def _recover(self) -> bool:
        """True after a call that never came to its end, by Ctrl-C say; what it left is undone."""
        if self._tally is None:
            return False
        self._forget()
        try:
            self._leave()
        except Exception as error:  # nothing may reach the training from here
            self._fail(error)
        return True

    def _fail(self, error: Exception) -> None:
        self.close()
        self._on_error(error)


class Tally(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the operations of every operator called while it is in force."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.error: Exception | None = None

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Under others torch.compile gives functions up, for good."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else the first operator counted would import the compiler: more than a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operator as it came, then look up its formula."""
        kwargs = kwargs or {}
        special = [kind for kind in types if kind.__torch_dispatch__ is not _no_dispatch]
        if any(hasattr(kind, "__tensor_flatten__") for kind in special):
            # Tensors around tensors, shards say: what they do with those inside comes here again.
            return NotImplemented
        if special:
            # Stand-ins without data, on which shards try an operator beforehand.
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and is_composite(func):
            # In inference mode these come whole; their parts are what has formulas.
            with self:
                return func._op_dk(_composite_key, *args, **kwargs)
        out = func(*args, **kwargs)
        if self.error is None:
            try:
                self.flops += flops_of(func, args, kwargs, out)
            except Exception as error:  # told when the call is over
                self.error = error
        return out

    def leave(self) -> None:
        """End it. Only the mode entered last can be: one that stays counts no more."""
        if _get_current_dispatch_mode() is not self:
            self.error = RuntimeError("a dispatch mode entered during the forward was not left")
            raise self.error
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def flops_of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
    """Operations of one call of an operator; 0 without a formula."""
    operator = getattr(func, "_overloadpacket", func)
    formula = FORMULAS.get(operator)
    if formula is not None:
        return formula(args, out)
    known: Any = flop_registry.get(operator)
    return 0 if known is None else int(known(*args, **kwargs, out_val=out))


def is_composite(func: Any) -> bool:
    """Whether an operator is made of others."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    name: str = func.name()  # type: ignore[no-untyped-call]
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, _composite_key)


def attention_flops(args: Sequence[Any], _out: Any) -> int:
    """Q·Kᵀ and P·V, in full also when causal: as in torch and in most published numbers."""
    query, key, value = (tuple(tensor.shape) for tensor in args[:3])
    return int(2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1]))


def grouped_mm_flops(args: Sequence[Any], _out: Any) -> int:
    """One product an expert: rows are shared out among the experts, or each has its own."""
    a, b = args[0], args[1]
    groups = a.shape[0] if a.dim() == b.dim() == 3 else 1
    return int(2 * groups * a.shape[-2] * a.shape[-1] * b.shape[-1])


def cell_flops(args: Sequence[Any], _out: Any) -> int:
    """One direction of a recurrent layer: every row and time step meets both matrices."""
    return int(2 * prod(args[0].shape[:-1]) * (args[1].numel() + args[2].numel()))


def recurrent_flops(args: Sequence[Any], _out: Any) -> int:
    """All layers and directions at once."""
    weights = sum(weight.numel() for weight in args[1] if weight.dim() == 2)
    return int(2 * prod(args[0].shape[:-1]) * weights)


_FORMULAS: dict[str, Callable[[Sequence[Any], Any], int]] = {
    "_scaled_dot_product_flash_attention": attention_flops,
    "_scaled_dot_product_flash_attention_for_cpu": attention_flops,
    "_scaled_dot_product_efficient_attention": attention_flops,
    "_scaled_dot_product_cudnn_attention": attention_flops,
    "_scaled_dot_product_fused_attention_overrideable": attention_flops,
    "_grouped_mm": grouped_mm_flops,
    "mkldnn_rnn_layer": cell_flops,
    "_cudnn_rnn": recurrent_flops,
    "miopen_rnn": recurrent_flops,
}

FORMULAS: dict[Any, Callable[[Sequence[Any], Any], int]] = {
    getattr(torch.ops.aten, name): formula
    for name, formula in _FORMULAS.items()
    if hasattr(torch.ops.aten, name)
}
"""What torch's table lacks, or in some of its versions refuses (fewer key than query heads)."""
