"""`monitor_scaled_dot_product_attention`: logs what goes into and comes out of an attention.

    activation/<module>.head_<i>.query/<metric>     the monitor's activation metrics, on each
    … .key, .value, .activation                     head's queries, keys, values and output
    attention_entropy/<module>.head_<i>             mean over batch and queries, in nats
    attention_max_logit/<module>.head_<i>           the largest, after scale and mask

Heads are query heads: where several share a key head, each has the keys and values it looks at. A
query without a distribution (all keys masked, or a NaN or +Inf among its logits) is left out; where
a step has no other, both columns are NaN.

The attention of the reference model has its tensors compared (difference metrics), and no entropy
of its own: a mean over two models would be nobody's. Dropout plays no part: these are the weights
before it, and no random number is drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchvitals.monitor.module_monitor import ModuleMonitor
from torchvitals.record import ConfigError
from torchvitals.stats.attention import attention_stats


def monitor_scaled_dot_product_attention(  # noqa: PLR0917  # the call it looks at has as many
    monitor: ModuleMonitor,
    module: str | nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    activation: Tensor | None = None,
    is_reference: bool = False,
) -> None:
    """Look at one call of `F.scaled_dot_product_attention`, given what it was given.

    Tensors are (…, heads, length, width). `activation` is what the call returned. Does nothing
    while the monitor looks away, nor for an excluded module. `dropout_p` is taken for the sake of
    the call's shape, and not used. `is_reference` is known where `module` is one, or where
    `monitor` was asked of a module of the reference.
    """
    del dropout_p
    if not monitor.is_monitoring():
        return
    tensors = {"query": query, "key": key, "value": value, "activation": activation}
    given = {which: tensor for which, tensor in tensors.items() if tensor is not None}
    if min(map(Tensor.dim, given.values())) < 3:
        raise ConfigError(
            "attention tensors are (…, heads, length, width), got "
            + ", ".join(f"{which} {tuple(tensor.shape)}" for which, tensor in given.items())
        )
    name = monitor.name_of(module, is_reference)
    if monitor.is_excluded(name):
        return
    is_reference = is_reference or monitor.is_of_reference(module)
    num = max(query.shape[-3], key.shape[-3])
    for which, tensor in given.items():
        # The head of a group that query head i looks at; one head is everybody's.
        size = tensor.shape[-3]
        for head in range(num):
            part = tensor.detach().select(-3, head * size // num)
            monitor.monitor_activations(f"{name}.head_{head}.{which}", part, is_reference)
    if is_reference:
        return
    found = attention_stats(
        query, key, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )
    entropies = torch.stack([found.entropy_sum, found.num_rows], dim=-1)
    for head in range(num):
        monitor.log_tensor(f"attention_entropy/{name}.head_{head}", entropies[head], _mean)
        monitor.log_tensor(
            f"attention_max_logit/{name}.head_{head}", found.max_logit[head], _highest
        )


def _mean(sums: Tensor) -> Tensor:
    """Of a sum and a number of queries for each call; NaN if there were none in any."""
    return sums[::2].sum() / sums[1::2].sum()


def _highest(tops: Tensor) -> Tensor:
    """Of the largest logit of each call, −inf where there was none; NaN if no call had one."""
    top = tops.max()
    return torch.where(top == -torch.inf, torch.nan, top)
