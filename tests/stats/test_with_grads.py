"""Gradients measured in the same pass as the change of the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchvitals.stats.backend import Bins, choose_backend

SHAPES = [(3,), (64, 64), (300, 257), (5000,), (200_000,), ()]
FEW_BLOCKS = [(3,), (64, 64), (30, 25), (5000,), (2000,), ()]
"""For Triton's interpreter."""


def lists(dtype: torch.dtype, backend: str = "native"):
    shapes = FEW_BLOCKS if backend == "triton" else SHAPES
    generator = torch.Generator().manual_seed(3)
    new = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    old = [tensor + 0.01 for tensor in new]
    grads = [(1e-3 * torch.randn(shape, generator=generator)).to(dtype) for shape in shapes]
    return new, old, grads


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("backend", ["native", "torch", "triton"])
@pytest.mark.parametrize("stride", [1, 7])
def test_one_pass_gives_what_two_give(backend, dtype, stride):
    new, old, grads = lists(dtype, backend)
    grads[2].view(-1)[5] = float("nan")
    grads[3].view(-1)[7] = float("inf")
    chosen = choose_backend(backend)
    apart, together = Bins(stride), Bins(stride)
    expected = chosen.measure(grads, bins=apart).host().sums
    found = chosen.measure_update(
        new, old, grads, bins=Bins(stride), delta_bins=Bins(stride), with_grads=True,
        grad_bins=together,
    )  # fmt: skip
    np.testing.assert_array_equal(found.host().grad_sums, expected)
    np.testing.assert_array_equal(together.host(), apart.host())
    plain = chosen.measure_update(new, old, grads).host()
    np.testing.assert_array_equal(found.sums, plain.sums)
    np.testing.assert_array_equal(found.delta_sums, plain.delta_sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("backend", ["native", "torch", "triton"])
@pytest.mark.parametrize("asked", ["both", "weights", "changes"])
def test_sampled_histograms_of_an_update_look_at_the_same_elements(backend, dtype, asked):
    new, old, grads = lists(dtype, backend)
    new[3].zero_()
    old[3].zero_()
    old[1].copy_(new[1])
    change = [(a.float() - b.float()) for a, b in zip(new, old, strict=True)]
    chosen = choose_backend(backend)
    weights, changes, expected, moved = Bins(7), Bins(7), Bins(7), Bins(7)
    chosen.measure(new, bins=expected)
    chosen.measure(change, bins=moved)
    chosen.measure_update(
        new,
        old,
        grads,
        bins=weights if asked != "changes" else None,
        delta_bins=changes if asked != "weights" else None,
        roll=True,
    )
    if asked != "changes":
        np.testing.assert_array_equal(weights.host(), expected.host())
    if asked != "weights":
        np.testing.assert_array_equal(changes.host(), moved.host())
    assert all(torch.equal(a, b) for a, b in zip(new, old, strict=True))


@pytest.mark.parametrize("backend", ["native", "torch", "triton"])
def test_gradients_that_cannot_ride_along_are_measured_by_themselves(backend):
    new, old, grads = lists(torch.float32, backend)
    grads[1] = grads[1].t()
    grads[3] = grads[3].double()
    chosen = choose_backend(backend)
    apart, together = Bins(7), Bins(7)
    expected = chosen.measure(grads, bins=apart).host().sums
    found = chosen.measure_update(new, old, grads, with_grads=True, grad_bins=together)
    np.testing.assert_allclose(found.host().grad_sums, expected, rtol=1e-12)
    np.testing.assert_array_equal(together.host(), apart.host())


def test_bins_are_right_from_call_to_call_whatever_range_the_last_tensor_had():
    """The kernel clears only the codes a tensor used: nothing of one may reach the next."""
    native, exact = choose_backend("native"), choose_backend("torch")
    tensors = [
        torch.full((5000,), 3e38),
        torch.linspace(-1e-3, 1e-3, 5000),
        torch.tensor([float("nan"), 1.0, -1e-30, float("-inf")] * 2000),
        torch.full((3000,), 1e-42),
        torch.linspace(-1e4, 1e4, 9000),
    ]
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 1, 3, 0, 4]):
        counted, expected = Bins(1), Bins(1)
        picked = [tensors[k] for k in order]
        native.measure(picked, bins=counted)
        exact.measure(picked, bins=expected)
        np.testing.assert_array_equal(counted.host(), expected.host())


@pytest.mark.parametrize("backend", ["native", "torch", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_copies_are_the_originals_bit_for_bit(backend, dtype):
    source, _, _ = lists(dtype)
    source[1] = source[1].t()  # not contiguous
    source[3].view(-1)[0] = float("nan")
    target = [torch.zeros(tensor.shape, dtype=dtype) for tensor in source]
    chosen = choose_backend(backend)
    chosen.copy(source, target)
    for a, b in zip(source, target, strict=True):
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))
        assert torch.equal(a.isnan(), b.isnan())
