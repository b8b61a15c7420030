"""`decompose`: the terms of a call, by the rule of its layer or by running the reference.

A layer with a rule costs about four of its forward passes, any other module one to three.
Call it inside `quiet`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchvitals.coordcheck import layers  # its rules register themselves
from torchvitals.coordcheck.attention import projections
from torchvitals.coordcheck.quiet import run
from torchvitals.coordcheck.terms import Decomposition, Pair, Terms, rule_of, wide
from torchvitals.probes.activations import is_signal, tensors_in

__all__ = ["decompose", "image_dims", "layers", "rule_of"]


def decompose(pair: Pair) -> Decomposition:
    """The terms of one call."""
    with torch.no_grad():
        found = rule_of(pair.module)
        known = None
        if found is not None and rule_of(pair.reference) is found:
            known = found(pair)
        whole = known if known is not None else by_running(pair)
        inner = projections(pair)
        return replace(whole, inner=inner) if inner else whole


def by_running(pair: Pair) -> Decomposition:
    """Of any module: run the reference on x_t.

    In training mode the captured outputs may hold dropout noise; then all three are run quietly.
    """
    now, before = pair.now, pair.before
    rerun = now.training or now.output is None
    rerun = rerun or (before is not None and (before.training or before.output is None))
    after = _outputs(run(pair.module, now) if rerun else now.output)
    middle = _outputs(run(pair.reference, now))
    first: dict[str, Tensor] = {}
    if before is not None:
        first = _outputs(run(pair.reference, before) if rerun else before.output)
    outputs = {}
    for path, tensor in after.items():
        through, start = _like(tensor, middle.get(path)), _like(tensor, first.get(path))
        if through is None:
            continue  # what comes out depends on the weights: nothing to compare with
        outputs[path] = Terms(
            effective=tensor - through,
            propagating=None if start is None else through - start,
            now=tensor,
            before=start,
            dims=pair.features(tensor),
        )
    x, x_before = pair.inputs()
    return Decomposition(
        outputs=outputs,
        weight=_without_bias(pair, outputs.get("")),
        x=x,
        dx=None if x is None or x_before is None else x - x_before,
        x_dims=(-1,) if x is None else pair.features(x),
    )


def _without_bias(pair: Pair, terms: Terms | None) -> Terms | None:
    """Of a Linear or LayerNorm with a forward of its own, such as a scaled readout."""
    module, reference = pair.module, pair.reference
    if terms is None or not isinstance(module, nn.Linear | nn.LayerNorm):
        return None
    if getattr(module, "weight", None) is None:
        return None
    bias, before = (getattr(one, "bias", None) for one in (module, reference))
    if bias is None or before is None:
        return terms
    return terms.plus(-wide(bias), -wide(before).to(bias.device))


def image_dims(model: nn.Module) -> frozenset[int]:
    """Numbers of dimensions of the images a model works on: 4 with Conv2d, 5 with Conv3d.

    Three dimensions are text as often as sound: there only a layer itself can tell.
    """
    kinds = {4: nn.Conv2d, 5: nn.Conv3d}
    inside = set(map(type, model.modules()))
    return frozenset(
        dims for dims, kind in kinds.items() if any(issubclass(one, kind) for one in inside)
    )


def _outputs(output: Any) -> dict[str, Tensor]:
    """The tensors of values in an output, by the way to each."""
    return {path: wide(tensor) for path, tensor in tensors_in(output) if is_signal(tensor)}


def _like(tensor: Tensor, other: Tensor | None) -> Tensor | None:
    if other is None or other.shape != tensor.shape:
        return None
    return other.to(tensor.device)
