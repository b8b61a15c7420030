"""Histograms counted by bits: whatever the values are, as by the definition of the bins."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from torchvitals.record.bins import NUM_BINS
from torchvitals.stats.backend import Bins, choose_backend
from torchvitals.stats.native.library import kernel, simd

SETS = ("avx512", "avx2", "baseline")


@pytest.fixture(params=SETS)
def loops(request: pytest.FixtureRequest) -> Iterator[str]:
    library, before = kernel(), simd()
    assert library is not None
    assert before is not None
    if not library.torchvitals_use(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    library.torchvitals_use(before.encode())


def counted(*tensors: Tensor, stride: int = 1) -> NDArray[np.int64]:
    bins = Bins(stride)
    choose_backend("native").measure(tensors, bins=bins)
    counts: NDArray[np.int64] = bins.counts.astype(np.int64)
    return counts


def by_definition(tensor: Tensor) -> NDArray[np.int64]:
    """The bins of a whole array at once, in float64."""
    x = tensor.double().numpy().ravel()
    x = x[np.isfinite(x)]
    mantissa, exponent = np.frexp(np.abs(x))
    half = 1 + 2 * (exponent.astype(np.int64) - 1 + 40) + (mantissa >= 0.75)
    side = np.where(exponent - 1 < -40, 0, np.where(exponent - 1 >= 22, 125, half))
    places = np.where(x == 0, 126, np.where(x > 0, 127 + side, 125 - side))
    return np.bincount(places, minlength=NUM_BINS)


def sample(tensor: Tensor, stride: int) -> Tensor:
    """One group of 32 neighbours in `stride`."""
    return tensor[(torch.arange(len(tensor)) // 32) % stride == 0]


def growing(size: int, generator: torch.Generator) -> Tensor:
    """Blocks of ever larger values: the window is opened anew again and again."""
    return torch.randn(size, generator=generator) * 2.0 ** torch.linspace(-30, 18, size)


def scattered(size: int, generator: torch.Generator) -> Tensor:
    """All magnitudes a float has alike, most of them far below the largest one."""
    power = torch.rand(size, generator=generator) * 200 - 140
    return torch.randn(size, generator=generator) * 2.0**power


def rectified(size: int, generator: torch.Generator) -> Tensor:
    return torch.randn(size, generator=generator).relu()


def tiny(size: int, generator: torch.Generator) -> Tensor:
    """Where windows would reach down to zero, subnormals among them."""
    return torch.randn(size, generator=generator) * 2.0**-120


def lonely(size: int, generator: torch.Generator) -> Tensor:
    """One large value a block, the others under its window; zeros of both signs, subnormals."""
    found = torch.randn(size, generator=generator) * 1e-9
    found[::2000] = 1e4
    found[1::7] = 0.0
    found[2::7] = -0.0
    found[3::701] = 1e-40
    found[4::701] = -1e-40
    return found


def broken(size: int, generator: torch.Generator) -> Tensor:
    found = torch.randn(size, generator=generator)
    found[size // 2] = torch.nan
    found[size // 3] = -torch.inf
    found[size // 5] = 1e30
    return found


KINDS = (growing, scattered, rectified, tiny, lonely, broken, torch.zeros)


@pytest.mark.parametrize("size", [255, 256, 4097, 20_000, 300_001])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_element_is_in_its_bin(kind, size, loops):
    generator = torch.Generator().manual_seed(size)
    tensor = kind(size) if kind is torch.zeros else kind(size, generator)
    np.testing.assert_array_equal(counted(tensor)[0], by_definition(tensor))


@pytest.mark.parametrize("stride", [2, 3, 7, 64, 1001])
@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.__name__)
def test_samples_too(kind, stride, loops):
    tensor = kind(100_003, torch.Generator().manual_seed(stride))
    expected = by_definition(sample(tensor, stride))
    np.testing.assert_array_equal(counted(tensor, stride=stride)[0], expected)


def test_neighbours_in_a_list_do_not_mix(loops):
    generator = torch.Generator().manual_seed(0)
    tensors = [kind(size, generator) for kind in KINDS[:-1] for size in (3000, 9000, 64)]
    for line, tensor in zip(counted(*tensors), tensors, strict=True):
        np.testing.assert_array_equal(line, by_definition(tensor))


def test_more_elements_than_digits_can_hold(loops):
    tensor = torch.randn(1 << 12, generator=torch.Generator().manual_seed(0))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = counted(tensor.repeat(4200))[0]  # 17.2 million
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(found, by_definition(tensor) * 4200)


@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=40),
    size=st.integers(256, 6000),
    stride=st.sampled_from([1, 7]),
)
def test_any_values_in_any_order(values, size, stride):
    tensor = torch.tensor(values, dtype=torch.float32).repeat(-(-size // len(values)))[:size]
    expected = by_definition(sample(tensor, stride) if size > 4096 else tensor)
    np.testing.assert_array_equal(counted(tensor, stride=stride)[0], expected)
