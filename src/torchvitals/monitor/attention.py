"""`monitor_scaled_dot_product_attention`: logs what goes into and comes out of an attention.

    activation/<module>.head_<i>.query/<metric>     the monitor's activation metrics, on each
    … .key, .value, .activation                     head's queries, keys, values and output
    attention_entropy/<module>.head_<i>             mean over batch and queries, in nats
    attention_max_logit/<module>.head_<i>           the largest, after scale and mask

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
    while the monitor looks away. `dropout_p` is taken for the sake of the call's shape.
    """
    del dropout_p
    if not monitor.is_monitoring():
        return
    if query.dim() < 3 or key.dim() < 3:
        raise ConfigError(
            "attention tensors are (…, heads, length, width), got "
            f"{tuple(query.shape)} and {tuple(key.shape)}"
        )
    name = monitor.name_of(module, is_reference)
    tensors = {"query": query, "key": key, "value": value, "activation": activation}
    for which, tensor in tensors.items():
        if tensor is None:
            continue
        for head in range(tensor.shape[-3]):
            monitor.monitor_activations(
                f"{name}.head_{head}.{which}", tensor.detach().select(-3, head), is_reference
            )
    if is_reference:
        return
    found = attention_stats(
        query, key, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa,
        keep_rows=True,
    )  # fmt: skip
    assert found.rows is not None
    for head in range(query.shape[-3]):
        rows = found.rows.select(-2, head)
        monitor.log_tensor(f"attention_entropy/{name}.head_{head}", rows[~rows.isnan()])
        monitor.log_tensor(
            f"attention_max_logit/{name}.head_{head}", found.max_logit[head], torch.max
        )
