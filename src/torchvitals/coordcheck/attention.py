"""The projections of `nn.MultiheadAttention`, which it computes without calling a module for them.

Its query, key and value projections are slices of one weight (or three weights, where keys and
values have sizes of their own), and `out_proj` is a Linear whose weight is used but whose forward
is not. Here they become Linears with the inputs they had, and get the terms of one. The input of
`out_proj` was never to be seen: the attention is run with the identity in its place, which costs
two of its forward passes.
"""

from __future__ import annotations

from inspect import signature

import torch
from torch import Tensor, nn

from torchvitals.coordcheck.calls import Call
from torchvitals.coordcheck.layers import linear
from torchvitals.coordcheck.quiet import run
from torchvitals.coordcheck.terms import Decomposition, Pair

INPUTS = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
"""Which argument each projection acts on."""


def projections(pair: Pair) -> dict[str, Decomposition]:
    """The terms of each projection by its name; empty for any other module."""
    if not (_keeps_forward(pair.module) and _keeps_forward(pair.reference)):
        return {}
    now, reference = _linears(pair.module), _linears(pair.reference)
    x, x_before = _inputs(pair.module, pair.now), {}
    if pair.before is not None:
        x_before = _inputs(pair.reference, pair.before)
    found = {}
    for name, module in now.items():
        before = _call(x_before[name]) if name in x_before else None
        terms = linear(Pair(module, reference[name], _call(x[name]), before))
        if terms is not None:
            found[name] = terms
    return found


def _keeps_forward(module: nn.Module) -> bool:
    """Whether it is torch's own; a subclass may project as it likes."""
    own = isinstance(module, nn.MultiheadAttention) and "forward" not in vars(module)
    return own and type(module).forward is nn.MultiheadAttention.forward


def _linears(module: nn.Module) -> dict[str, nn.Linear]:
    assert isinstance(module, nn.MultiheadAttention)
    if module._qkv_same_embed_dim:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    bias = module.in_proj_bias
    biases = (None, None, None) if bias is None else bias.chunk(3)
    parts = zip(INPUTS, weights, biases, strict=True)
    return {
        **{name: _as_linear(weight, own_bias) for name, weight, own_bias in parts},
        "out_proj": module.out_proj,
    }


def _as_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    # On meta no weight is drawn, which would be a draw from the user's random state.
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    made.weight = nn.Parameter(weight.detach(), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return made


def _inputs(module: nn.Module, call: Call) -> dict[str, Tensor]:
    """What each projection acted on."""
    assert isinstance(module, nn.MultiheadAttention)
    given = signature(module.forward).bind(*call.args, **call.kwargs).arguments
    weight = module.out_proj.weight
    plain = {"out_proj.weight": torch.eye(len(weight), dtype=weight.dtype, device=weight.device)}
    if module.out_proj.bias is not None:
        plain["out_proj.bias"] = torch.zeros_like(module.out_proj.bias)
    attended, _weights = run(module, call, plain)
    return {**{name: given[argument] for name, argument in INPUTS.items()}, "out_proj": attended}


def _call(x: Tensor) -> Call:
    return Call(training=False, settled=True, given=None, args=(x,))
