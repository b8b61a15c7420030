"""Rules of torch's own layers: those whose weights enter linearly.

The difference of the weights is taken first and then applied to the input: W_t x_t − W_0 x_t of two
rounded products would lose small updates, in bfloat16 nearly all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from torchvitals.coordcheck.terms import (
    Decomposition,
    Dims,
    Operators,
    Pair,
    Terms,
    norms,
    rule,
    wide,
)
from torchvitals.probes.activations import tensors_in


@rule(nn.Linear)
def linear(pair: Pair) -> Decomposition | None:
    """(W_t − W_0) x_t and W_0 (x_t − x_0), features last."""
    x, x_before = pair.inputs()
    weights = _weights(pair)
    if x is None or weights is None:
        return None
    terms = _terms(F.linear, x, x_before, weights, (-1,))
    dx = None if x_before is None else x - x_before
    return Decomposition(
        outputs={"": terms.plus(*_biases(pair))},
        weight=terms,
        x=x,
        dx=dx,
        operators=_operators(weights, x, dx),
    )


@rule(nn.Embedding)
def embedding(pair: Pair) -> Decomposition | None:
    """The rows that were looked up have moved; its input, indices, can't."""
    given = tensors_in((pair.now.args, pair.now.kwargs))
    indices = next((tensor for _, tensor in given if not tensor.is_floating_point()), None)
    weights = _weights(pair)
    if indices is None or weights is None:
        return None
    now, before = (F.embedding(indices, weight) for weight in weights)
    effective = now - before
    return Decomposition(outputs={"": Terms(effective, None, now, before, (-1,))})


@rule(nn.LayerNorm, nn.RMSNorm)
def norm(pair: Pair) -> Decomposition | None:
    """The weight is a diagonal that acts on the normalised input.

    Without one (`elementwise_affine=False`) that is the identity, which does not move: ones, whose
    effective term is zero. It has no alignment, which would be that of no matrix.
    """
    x, x_before = pair.inputs()
    if x is None:
        return None
    bare = all(getattr(one, "weight", None) is None for one in (pair.module, pair.reference))
    weights = _ones(pair.module, x) if bare else _weights(pair)
    if weights is None:
        return None
    own = _normalise(pair.module, pair.now.args, x)
    own_before = None
    if x_before is not None and pair.before is not None:
        own_before = _normalise(pair.reference, pair.before.args, x_before)
    dims = tuple(range(-weights[0].dim(), 0))
    terms = _terms(torch.mul, own, own_before, weights, dims)
    change = None if own_before is None else own - own_before
    return Decomposition(
        outputs={"": terms.plus(*_biases(pair))},
        weight=terms,
        x=x,
        dx=None if x_before is None else x - x_before,
        x_dims=dims,
        normalised=(own, change),
        operators=None
        if bare
        else Operators(
            delta=(weights[0] - weights[1]).flatten(),
            reference=weights[1].flatten(),
            x=norms(own, dims),
            dx=None if change is None else norms(change, dims),
        ),
    )


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution(pair: Pair) -> Decomposition | None:
    """As a Linear on patches; norms are over channels, means over positions."""
    x, x_before = pair.inputs()
    weights = _weights(pair)
    if x is None or weights is None:
        return None
    module = pair.module
    assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
    spatial = weights[0].dim() - 2
    dims = (-1 - spatial,)

    def convolve(values: Tensor, weight: Tensor) -> Tensor:
        out: Tensor = module._conv_forward(values, weight, None)
        return out

    terms = _terms(convolve, x, x_before, weights, dims)
    biases = [None if bias is None else bias.view(-1, *[1] * spatial) for bias in _biases(pair)]
    dx = None if x_before is None else x - x_before
    # ‖patch‖² is a convolution of x² with ones; one output channel a group, added up.
    ones = torch.ones_like(weights[0][: module.groups])
    patch = [
        None if v is None else convolve(v * v, ones).sum(dims[0]).clamp_min(0.0).sqrt()
        for v in (x, dx)
    ]
    assert patch[0] is not None
    blocks = [weight.reshape(module.groups, -1, weight[0].numel()) for weight in weights]
    return Decomposition(
        outputs={"": terms.plus(biases[0], biases[1])},
        weight=terms,
        x=x,
        dx=dx,
        x_dims=dims,
        operators=Operators(blocks[0] - blocks[1], blocks[1], patch[0], patch[1]),
    )


def _weights(pair: Pair) -> tuple[Tensor, Tensor] | None:
    """W_t and W_0 where the terms are computed; None without weights that can be subtracted."""
    now, before = pair.module.weight, pair.reference.weight
    if not isinstance(now, Tensor) or not isinstance(before, Tensor):
        return None
    if now.shape != before.shape or now.is_meta or before.is_meta:
        return None
    return wide(now), wide(before).to(now.device)


def _ones(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The weights that a normalisation without any has, as it were."""
    assert isinstance(module, nn.LayerNorm | nn.RMSNorm)
    ones = x.new_ones(module.normalized_shape)
    return ones, ones


def _biases(pair: Pair) -> tuple[Tensor | None, Tensor | None]:
    now, before = (getattr(module, "bias", None) for module in (pair.module, pair.reference))
    if now is None or before is None:
        return None, None
    return wide(now), wide(before).to(now.device)


def _terms(
    apply: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    x_before: Tensor | None,
    weights: tuple[Tensor, Tensor],
    dims: Dims,
) -> Terms:
    """The terms of a layer that is linear in its weights and in x."""
    now, before = weights
    return Terms(
        effective=apply(x, now - before),
        propagating=None if x_before is None else apply(x - x_before, before),
        now=apply(x, now),
        before=None if x_before is None else apply(x_before, before),
        dims=dims,
    )


def _operators(weights: tuple[Tensor, Tensor], x: Tensor, dx: Tensor | None) -> Operators:
    now, before = weights
    return Operators(
        delta=now - before,
        reference=before,
        x=norms(x, (-1,)),
        dx=None if dx is None else norms(dx, (-1,)),
    )


def _normalise(module: nn.Module, args: object, x: Tensor) -> Tensor:
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(x, module.normalized_shape, eps=module.eps)
    assert isinstance(module, nn.RMSNorm)
    eps = module.eps
    if eps is None:
        # Its default depends on the dtype, and x was widened.
        given = next((tensor.dtype for _, tensor in tensors_in(args)), x.dtype)
        eps = torch.finfo(given).eps
    return F.rms_norm(x, module.normalized_shape, eps=eps)
