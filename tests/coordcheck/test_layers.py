"""The rule of each layer type against running the layer, and its alignments against numpy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchvitals.coordcheck.calls import Call
from torchvitals.coordcheck.decompose import by_running, decompose, image_dims
from torchvitals.coordcheck.operator_norm import operator_norm
from torchvitals.coordcheck.terms import RULES, Pair, norms, rms, rule, rule_of

from .monitors import moved


def pair_of(make: Callable[[], nn.Module], *shape: int, ids: bool = False) -> Pair:
    """A float64 layer and its reference, called with inputs that differ."""
    torch.manual_seed(0)
    reference = moved(make().double(), 0.3, seed=3)
    module = moved(copy.deepcopy(reference), 0.05)
    x0 = torch.randint(7, shape) if ids else torch.randn(shape, dtype=torch.float64)
    xt = x0 if ids else x0 + 0.1 * torch.randn(shape, dtype=torch.float64)
    with torch.no_grad():
        calls = [
            Call(training=False, settled=True, given=None, args=(x,), output=layer(x))
            for layer, x in ((module, xt), (reference, x0))
        ]
    return Pair(module, reference, *calls)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(5, 7), (3, 2, 5)),
    "linear without bias": (lambda: nn.Linear(5, 7, bias=False), (3, 5)),
    "linear of a vector": (lambda: nn.Linear(5, 7), (5,)),
    "layer norm": (lambda: nn.LayerNorm(6), (4, 6)),
    "layer norm without bias": (lambda: nn.LayerNorm(6, bias=False), (4, 6)),
    "layer norm of two dimensions": (lambda: nn.LayerNorm((3, 6)), (4, 3, 6)),
    "rms norm": (lambda: nn.RMSNorm(6), (4, 2, 6)),
    "rms norm with eps": (lambda: nn.RMSNorm(6, eps=0.1), (4, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 8)),
    "conv1d without batch": (lambda: nn.Conv1d(4, 6, 3), (4, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, stride=2, dilation=2), (2, 4, 9, 8)),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (2, 4, 5, 5)),
    "conv2d padded": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 3, 4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_rule_gives_what_running_gives(name: str) -> None:
    make, shape = LAYERS[name]
    pair = pair_of(make, *shape)
    assert rule_of(pair.module) is not None
    found, right = decompose(pair), by_running(pair)
    mine, theirs = found.outputs[""], right.outputs[""]
    for term in ("effective", "propagating", "now", "before"):
        torch.testing.assert_close(getattr(mine, term), getattr(theirs, term), msg=term)
    total = mine.effective + mine.propagating
    torch.testing.assert_close(total, pair.now.output - pair.before.output)  # type: ignore[union-attr]
    bias = getattr(pair.module, "bias", None)
    if bias is None:
        assert torch.equal(found.weight.now, mine.now)  # type: ignore[union-attr]
    else:
        shaped = bias.reshape(-1, *[1] * (-mine.dims[0] - 1)) if "conv" in name else bias
        torch.testing.assert_close(found.weight.now + shaped, mine.now)  # type: ignore[union-attr]


def test_convolutions_have_their_norms_over_channels() -> None:
    found = decompose(pair_of(lambda: nn.Conv2d(4, 6, 3), 2, 4, 7, 8))
    terms = found.outputs[""]
    assert norms(terms.effective, terms.dims).shape == (2, 5, 6)
    assert norms(found.x, found.x_dims).shape == (2, 7, 8)  # type: ignore[arg-type]
    right = terms.effective.numpy()
    right = np.sqrt((right**2).sum(axis=1) / 6)
    np.testing.assert_allclose(rms(terms.effective, terms.dims).numpy(), right)


def test_embedding_has_only_the_effective_term() -> None:
    pair = pair_of(lambda: nn.Embedding(7, 5), 3, 4, ids=True)
    found = decompose(pair)
    assert found.outputs[""].propagating is None
    assert found.x is None
    assert found.dx is None
    torch.testing.assert_close(
        found.outputs[""].effective,
        pair.now.output - pair.before.output,  # type: ignore[union-attr]
    )


def matrix_and_inputs(pair: Pair, weight: Tensor, x: Tensor) -> tuple[Any, Any]:
    """The layer without bias as a matrix, and its inputs as columns."""
    module = pair.module
    if isinstance(module, nn.Conv2d):
        columns = F.unfold(x, module.kernel_size, module.dilation, 0, module.stride)
        whole = torch.zeros(6, 4 * 9, dtype=torch.float64)  # groups as blocks
        size = weight[0].numel()
        for out in range(6):
            group = out // (6 // module.groups)
            whole[out, group * size : (group + 1) * size] = weight[out].flatten()
        return whole.numpy(), columns.transpose(1, 2).flatten(0, 1).numpy()
    if isinstance(module, nn.LayerNorm):
        return torch.diag(weight).numpy(), F.layer_norm(x, (6,)).flatten(0, -2).numpy()
    if isinstance(module, nn.RMSNorm):
        eps = torch.finfo(torch.float64).eps
        return torch.diag(weight).numpy(), F.rms_norm(x, (6,), eps=eps).flatten(0, -2).numpy()
    return weight.numpy(), x.flatten(0, -2).numpy()


@pytest.mark.parametrize("name", ["linear", "layer norm", "rms norm", "conv2d", "conv2d grouped"])
def test_alignments(name: str) -> None:
    make, shape = LAYERS[name]
    pair = pair_of(make, *shape)
    wt, w0 = pair.module.weight.detach(), pair.reference.weight.detach()
    delta, x = matrix_and_inputs(pair, wt - w0, pair.now.args[0])
    start, x0 = matrix_and_inputs(pair, w0, pair.before.args[0])  # type: ignore[union-attr]

    def ratio(matrix: Any, inputs: Any) -> float:
        size = np.linalg.norm(inputs, axis=1).mean() * np.linalg.norm(matrix, 2)
        return float(np.linalg.norm(inputs @ matrix.T, axis=1).mean() / size)

    effective, propagating = decompose(pair).alignments()
    assert effective == pytest.approx(ratio(delta, x), rel=1e-5)
    assert propagating == pytest.approx(ratio(start, x - x0), rel=1e-5)
    assert 0 < effective <= 1


def test_alignment_of_a_rank_one_update_is_one() -> None:
    pair = pair_of(lambda: nn.Linear(40, 50, bias=False), 1, 40)
    x = pair.now.args[0]
    with torch.no_grad():
        pair.module.weight.copy_(pair.reference.weight + 1e-9 * torch.ones(50, 1).double() @ x)
    assert decompose(pair).alignments()[0] == pytest.approx(1.0, abs=1e-5)
    with torch.no_grad():
        pair.module.weight.copy_(pair.reference.weight)
    assert np.isnan(decompose(pair).alignments()[0])


@pytest.mark.parametrize("shape", [(200, 300), (300, 200), (5, 200), (64, 64), (1, 1)])
def test_operator_norm(shape: tuple[int, int]) -> None:
    dice = torch.Generator().manual_seed(0)
    before = torch.get_rng_state()
    full = torch.randn(shape, generator=dice)
    low_rank = (
        1e-20 * torch.randn(shape[0], 2, generator=dice) @ torch.randn(2, shape[1], generator=dice)
    )
    for matrix in (full, low_rank, torch.ones(shape), full.double()):
        right = np.linalg.norm(matrix.double().numpy(), 2)
        assert operator_norm(matrix) == pytest.approx(right, rel=1e-3)
    assert operator_norm(torch.zeros(shape)) == 0.0
    assert np.isnan(operator_norm(full / 0))
    assert operator_norm(torch.tensor([1.0, -3.0])) == 3.0
    assert operator_norm(torch.stack([full, 2 * full])) == pytest.approx(2 * operator_norm(full))
    assert operator_norm(torch.zeros(0, 4)) == 0.0
    assert torch.equal(torch.get_rng_state(), before)


def test_rules_are_an_open_set() -> None:
    class Twofold(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    class Same(nn.Linear):
        pass

    assert rule_of(Same(2, 2)) is rule_of(nn.Linear(2, 2))
    assert rule_of(Twofold(2, 2)) is None
    try:

        @rule(Twofold)
        def mine(pair: Pair) -> None:
            """Knows nothing."""

        assert rule_of(Twofold(2, 2)) is mine
        pair = pair_of(lambda: Twofold(3, 4), 5, 3)
        assert torch.equal(decompose(pair).outputs[""].now, pair.now.output)
    finally:
        del RULES[Twofold]
    replaced = nn.Linear(2, 2)
    replaced.forward = lambda x: x  # type: ignore[method-assign]
    assert rule_of(replaced) is None


def test_image_models_have_channels_first() -> None:
    assert image_dims(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv1d(1, 1, 1))) == {4}
    assert image_dims(nn.Conv3d(1, 1, 1)) == {5}
    assert image_dims(nn.Linear(1, 1)) == set()
    pair = pair_of(nn.ReLU, 2, 3, 4, 5)
    assert norms(by_running(pair).outputs[""].now, (-1,)).shape == (2, 3, 4)
    images = Pair(pair.module, pair.reference, pair.now, pair.before, frozenset({4}))
    assert by_running(images).outputs[""].dims == (1,)
    assert images.features(torch.ones(2, 3)) == (-1,)
    assert images.features(torch.tensor(1.0)) == ()
