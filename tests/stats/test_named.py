"""Statistics by name: what the backends serve is what the functions give, NaN and Inf included."""

import math

import pytest
import torch

from torchvitals import stats
from torchvitals.stats import named
from torchvitals.stats.backend import choose_backend

FUNCTIONS = [
    stats.norm, stats.rms, stats.mean, stats.std, stats.min, stats.max, stats.absmax,
    stats.zero_frac,
]  # fmt: skip
NAN, INF = math.nan, math.inf
TENSORS = {
    "finite": [0.5, -3.0, 0.0, 2.0],
    "nan": [NAN, 1.0, 0.0],
    "only nan": [NAN, NAN],
    "inf": [1.0, INF, 0.0],
    "-inf": [1.0, -INF],
    "only inf": [INF, INF],
    "only -inf": [-INF],
    "both": [INF, -INF, 0.0],
    "all three": [INF, NAN, -INF, 2.0],
}


def tensors(dtype, pad):
    """Each also as the end of a tensor that is read in several blocks."""
    filler = torch.linspace(-1, 1, pad)
    return [torch.cat([filler, torch.tensor(x)]).to(dtype) for x in TENSORS.values()]


@pytest.fixture(params=["native", "torch"])
def backend(request):
    return choose_backend(request.param)


@pytest.mark.parametrize("pad", [0, 10_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "functions",
    [FUNCTIONS, [stats.norm, stats.mean], [stats.mean], [stats.max], [stats.absmax, stats.min]],
    ids=["all", "thin", "mean", "max", "ends"],
)
def test_served_together_they_are_what_they_are_called_alone(backend, functions, dtype, pad):
    given = tensors(dtype, pad)
    found = named.measure(backend, given, functions)
    for kind, tensor, line in zip(TENSORS, given, found, strict=True):
        wanted = [float(function(tensor)) for function in functions]
        assert line == pytest.approx(wanted, rel=1e-5, abs=1e-6, nan_ok=True), kind


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.norm(),
        lambda x: x.mean(),
        lambda x: x.min(),
        lambda x: x.max(),
        lambda x: x.abs().max(),
    ],
    ids=["norm", "mean", "min", "max", "absmax"],
)
def test_lambdas_that_are_recognised_give_what_torch_gives(backend, function):
    statistic = named.recognised(function)
    assert statistic is not None
    given = tensors(torch.float32, 0)
    (found,) = named.columns(backend, given, [statistic])
    wanted = [float(function(tensor)) for tensor in given]
    assert found == pytest.approx(wanted, rel=1e-6, nan_ok=True)


def test_means_of_rows_are_told_from_means():
    assert named.is_mean(lambda x: x.mean())
    assert named.is_mean(lambda x: x.mean(dim=-1))
    assert named.is_row_mean(lambda x: x.mean(-1))
    assert not named.is_row_mean(lambda x: x.mean())
    assert not named.is_mean(lambda x: x.mean(dim=0))
    assert named.is_statistic(lambda x: x.mean(dim=-1), "mean")
    assert named.is_statistic(stats.absmax, "absmax")
    assert not named.is_statistic(stats.absmax, "max")
    assert not named.is_statistic(lambda g: g.abs().sum(), "norm")
