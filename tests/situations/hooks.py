"""What a training carries: after `close()` it is what it would carry without a monitor."""

from collections import Counter

import torch
from torch.nn.modules import module as module_internals
from torch.nn.utils import clip_grad
from torch.utils.data import DataLoader


def hooks_of(model, optimizer):
    """How many hooks of each kind everything carries, and what stands where functions stood."""
    found = Counter()
    for name, module in model.named_modules():
        for kind, value in vars(module).items():
            if kind.endswith("_hooks") or kind in {"forward", "_compiled_call_impl"}:
                found[name, kind] = len(value) if hasattr(value, "__len__") else 1
    for name, parameter in model.named_parameters():
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found[name, kind] = len(getattr(parameter, kind) or ())
    for kind, value in vars(optimizer).items():
        if kind.endswith("_hooks") or kind == "step":
            found["optimizer", kind] = len(value) if hasattr(value, "__len__") else 1
    for kind, value in vars(module_internals).items():
        if kind.startswith("_global_") and hasattr(value, "__len__"):
            found["everything", kind] = len(value)
    functions = (
        clip_grad.clip_grad_norm_, torch.nn.functional.scaled_dot_product_attention,
        torch.amp.GradScaler.step, torch.Tensor.backward, DataLoader.__iter__,
        torch.optim.Optimizer.profile_hook_step,
    )  # fmt: skip
    return +found, functions
