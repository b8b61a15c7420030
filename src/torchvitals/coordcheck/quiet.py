"""Running a module as a function of its weights and inputs alone: no dice, no memory.

Dropout is off, and buffers such as running statistics are copies that are thrown away. A
normalisation that uses the statistics of its batch while training goes on doing so: they are part
of the function. The random state is left as it was found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_map_only

from torchvitals.coordcheck.calls import Call

AUTOCASTS = ("cpu", "cuda", "xpu", "mps")


@contextmanager
def quiet(pairs: Iterable[tuple[nn.Module, nn.Module]]) -> Iterator[None]:
    """Inside, both modules of each pair are quiet, in the mode of the first one."""
    modes: dict[nn.Module, bool] = {}
    buffers: list[tuple[dict[str, Any], dict[str, Any]]] = []
    copies: dict[int, Tensor] = {}
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        # The fast path of attention works past the modules inside: no hook would see them.
        torch.backends.mha.set_fastpath_enabled(False)
        for pair in pairs:
            training = modes.get(pair[0], pair[0].training)
            for module in pair:
                if module in modes:
                    continue
                modes[module] = module.training
                module.training = training and isinstance(module, _NormBase)
                buffers.append((module._buffers, dict(module._buffers)))
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        copy = copies.setdefault(id(buffer), buffer.clone())
                        module._buffers[name] = copy
        yield
    finally:
        for place, before in buffers:
            place.clear()
            place.update(before)
        for module, training in modes.items():
            module.training = training
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def exact() -> Iterator[None]:
    """No autocast inside: terms are computed in float32 wherever the check is called."""
    with ExitStack() as stack:
        for kind in AUTOCASTS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def own_random_state() -> Iterator[None]:
    """Whatever is drawn inside, outside nothing was."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        yield


def run(module: nn.Module, call: Call, parameters: Mapping[str, Tensor] | None = None) -> Any:
    """What a module gives for the inputs of a call, under the autocast of that call.

    `parameters` stand in for those of its own that have their names.
    """
    device = next((tensor.device for tensor in module.parameters()), None)

    def own(tensor: Tensor) -> Tensor:
        # A copy: the module may work in place, and the inputs are needed again.
        return tensor.clone() if device is None else tensor.to(device, copy=True)

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(own_random_state())
        for kind, dtype in call.autocast.items():
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        args, kwargs = tree_map_only(Tensor, own, (call.args, call.kwargs))
        if parameters:
            return functional_call(module, dict(parameters), args, kwargs)
        return module(*args, **kwargs)
