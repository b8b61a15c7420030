"""A part of a tensor: every backend reads the same groups, and nothing else."""

import numpy as np
import pytest
import torch

from torchvitals.stats.backend import PART_STRIDE, Activity, choose_backend
from torchvitals.stats.sums import MAX, MIN, SUM, SUMSQ

from .reference import reference_sums

COUNTS = [0, 5, 6, 7, 8]


@pytest.fixture(params=["native", "torch", "triton"])
def backend(request):
    return choose_backend(request.param)


def part_of(tensor, phase):
    """The groups of 32 that are due, small tensors whole."""
    x = tensor.detach().double().numpy().ravel()
    if x.size < 1 << 16:
        return x
    return x[np.arange(x.size) // 32 % PART_STRIDE == phase]


def tensors(dtype, large):
    generator = torch.Generator().manual_seed(0)
    sizes = [(1,), (4097,), (1 << 16,), ((1 << 16) - 1,), (large,), (3, 50, 64)]
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("phase", [0, 1, 8, PART_STRIDE - 1])
def test_the_sums_are_those_of_the_part(backend, dtype, phase):
    given = tensors(dtype, 70_001 if backend.name == "triton" else 300_017)
    ends = np.array([[-0.5, 1.0]] * len(given), dtype=np.float32)
    found = backend.measure(given, ends=ends, phase=phase).host()
    for line, tensor in enumerate(given):
        x = part_of(tensor, phase)
        want, got = np.array(reference_sums(x)), found.sums[line]
        np.testing.assert_array_equal(got[COUNTS], want[COUNTS])
        np.testing.assert_array_equal(got[[MIN, MAX]], want[[MIN, MAX]])
        np.testing.assert_allclose(got[SUMSQ], want[SUMSQ], rtol=1e-5)
        assert abs(got[SUM] - want[SUM]) <= 5e-6 * np.abs(x).sum()
        assert found.outside[line] == np.count_nonzero((x <= -0.5) | (x >= 1.0))


def test_all_phases_together_are_the_whole(backend):
    x = torch.randn(65_555 if backend.name == "triton" else 100_003)
    found = [backend.measure([x, x], phase=phase).host().sums for phase in range(PART_STRIDE)]
    whole = backend.measure([x, x]).host().sums
    together = np.sum(found, axis=0)
    np.testing.assert_array_equal(together[:, COUNTS], whole[:, COUNTS])
    np.testing.assert_allclose(together[:, SUMSQ], whole[:, SUMSQ], rtol=1e-6)


def test_one_tensor_alone_is_read_in_part_too(backend):
    x = torch.randn(90_000)
    alone = backend.measure([x], phase=3).host().sums
    assert alone[0, 0] == len(part_of(x, 3))


def test_unit_counters_look_at_their_own_rows(backend):
    x = torch.relu(torch.randn(2000, 64))
    counts = torch.zeros(64, dtype=torch.int32)
    backend.measure([x, x], activity=[Activity(64, 1, 5, 0.0, counts), None], phase=2)
    assert counts.tolist() == (x[::5] > 0).sum(0).tolist()


def test_the_kernel_says_at_once_whether_all_is_finite():
    native = choose_backend("native")
    x = torch.randn(70_000)
    assert native.measure([x, x]).finite is True
    assert native.measure([x]).finite is True
    for bad in ("nan", "inf", "-inf"):
        y = x.clone()
        y[40] = float(bad)
        assert native.measure([x, y]).finite is False
        assert native.measure([y]).finite is False
        assert native.measure([y, y], phase=1).finite is False
        assert native.measure([y, y], phase=2).finite is True  # it is in group 1
