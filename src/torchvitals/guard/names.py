"""Names of parameters without the prefixes of wrappers, by the tensors' ids."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

WRAPPERS = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_forward_module", "_checkpoint_wrapped_module"}
)
PARALLEL = ("DistributedDataParallel", "DataParallel")


def names_of(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> dict[int, str]:
    """Those of the models; parameters of no model are called by their group and place."""
    names: dict[int, str] = {}
    for number, model in enumerate(models):
        prefix = f"model{number}." if len(models) > 1 else ""
        inner = model.module if type(model).__name__ in PARALLEL else model
        assert isinstance(inner, nn.Module)
        for name, parameter in inner.named_parameters():
            parts = [part for part in name.split(".") if part not in WRAPPERS]
            names.setdefault(id(parameter), prefix + ".".join(parts))
    for optimizer in optimizers:
        for at, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                names.setdefault(id(parameter), f"group {at} parameter {place}")
    return names
