"""All backends against a float64 reference, on every kind of tensor a user can have."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchvitals.record import UnsupportedTensor
from torchvitals.stats import sums
from torchvitals.stats.backend import Activity, Bins, choose_backend
from torchvitals.stats.native.library import kernel, simd
from torchvitals.stats.sums import MAX, MIN, SUM, SUMSQ

from .reference import reference_bins, reference_sample, reference_sums

COUNTS = [0, 5, 6, 7, 8]


@pytest.fixture(params=["native-avx512", "native-avx2", "native-baseline", "torch", "triton"])
def backend(request):
    name, _, loops = request.param.partition("-")
    chosen, before = choose_backend(name), simd()
    if loops and not kernel().torchvitals_use(loops.encode()):
        pytest.skip(f"this machine has no {loops}")
    yield chosen
    if loops:
        kernel().torchvitals_use(before.encode())


def at_most(backend, size):
    """A large size, or for Triton's interpreter, which takes 50 ms a block, one of a few blocks."""
    return min(size, 9001) if backend.name == "triton" else size


def check(backend, tensors, values=None, stride=1):
    """Sums and bins of each tensor equal the reference's of `values`."""
    values = [t.detach() for t in tensors] if values is None else values
    counted = Bins(stride)
    measured = backend.measure(tensors, bins=counted).host()
    for line, expected in enumerate(values):
        x = np.asarray(expected.double().numpy())
        want = np.array(reference_sums(x))
        got = measured.sums[line]
        np.testing.assert_array_equal(got[COUNTS], want[COUNTS])
        np.testing.assert_array_equal(got[[MIN, MAX]], want[[MIN, MAX]])
        np.testing.assert_allclose(got[SUMSQ], want[SUMSQ], rtol=1e-5)
        scale = np.abs(x[np.isfinite(x)]).sum()
        assert abs(got[SUM] - want[SUM]) <= 5e-6 * scale
        bins = reference_bins(reference_sample(x, stride))
        np.testing.assert_array_equal(counted.host()[line], bins)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stride", [1, 7])
def test_random_tensors(backend, dtype, stride):
    generator = torch.Generator().manual_seed(0)
    sizes = [1, 7, 31, 2048, 2049, 4096, 4097, 10_000, at_most(backend, 300_001)]
    tensors = [torch.randn(n, generator=generator).to(dtype) for n in sizes]
    check(backend, tensors, stride=stride)


@pytest.mark.parametrize("exponent", [-44, -38, -30, -20, -13, -12, -11, 0, 14, 15, 16, 30, 37])
def test_magnitudes_at_and_beyond_float32s_squares(backend, exponent):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5000, generator=generator, dtype=torch.float64) * 10.0**exponent
    check(backend, [x.float()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_non_finite_values_are_counted_and_kept_out(backend, dtype):
    x = torch.randn(9000, generator=torch.Generator().manual_seed(2)).to(dtype)
    x[3], x[5000], x[8999], x[17] = float("nan"), float("inf"), float("-inf"), 0.0
    x[6000:6002] = float("nan")
    x[100] = -0.0
    everything = [x, torch.full((3,), float("nan"), dtype=dtype)]
    check(backend, everything)


def test_subnormals_zeros_and_constants(backend):
    tiny = torch.tensor([1e-45, -1e-45, 0.0, -0.0, 1e-40, -3e-39, 1.0])
    check(backend, [tiny, tiny.repeat(1000), torch.zeros(10_000), torch.full((5000,), -2.5)])
    check(backend, [torch.full((5000,), 1e-40)])


def test_empty_and_scalar_tensors(backend):
    check(backend, [torch.zeros(0), torch.tensor(3.5), torch.zeros(4, 0, 2)])


def test_no_tensors_at_all(backend):
    assert len(backend.measure([], bins=Bins(1)).host().sums) == 0


def test_views_of_every_kind(backend):
    base = torch.randn(40, 30, 5, generator=torch.Generator().manual_seed(3))
    views = [
        base.t() if base.dim() == 2 else base.transpose(0, 2),
        base[::3, ::2],
        base[5:6].expand(7, 30, 5),
        base.to(memory_format=torch.contiguous_format)[..., 1],
        torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last),
        base.flip(0),
    ]
    check(backend, views)


def test_integers_booleans_and_complex(backend):
    numbers = torch.arange(-5, 300)
    flags = numbers > 3
    waves = torch.randn(50, dtype=torch.complex64, generator=torch.Generator().manual_seed(4))
    check(backend, [numbers, flags, waves], [numbers, flags.double(), waves.abs()])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_gradients_count_their_implicit_zeros(backend):
    dense = torch.zeros(60, 8)
    dense[3], dense[40] = torch.randn(8), -1.0
    layouts = [dense.to_sparse(), dense.to_sparse_csr()]
    duplicated = torch.sparse_coo_tensor([[1, 1, 4]], [2.0, 3.0, -1.0], (6,), check_invariants=True)
    summed = torch.tensor([0.0, 5.0, 0.0, 0.0, -1.0, 0.0])
    check(backend, [*layouts, duplicated], [dense, dense, summed])


def test_tensors_without_values_are_refused_by_name(backend):
    with pytest.raises(UnsupportedTensor, match="meta"):
        backend.measure([torch.empty(3, device="meta")])


def test_requires_grad_is_no_obstacle_and_leaves_no_graph(backend):
    weight = torch.nn.Parameter(torch.randn(100))
    check(backend, [weight * 2])
    check(backend, [weight])


@settings(max_examples=60)
@given(
    st.lists(st.floats(width=32), min_size=0, max_size=200), st.sampled_from(["native", "torch"])
)
def test_any_float32_values(values, name):
    check(choose_backend(name), [torch.tensor(values, dtype=torch.float32)])


@settings(max_examples=60)
@given(
    st.lists(st.floats(width=16), min_size=0, max_size=100), st.sampled_from(["native", "torch"])
)
def test_any_float16_values(values, name):
    check(choose_backend(name), [torch.tensor(values, dtype=torch.float16)])


@settings(max_examples=10)
@given(
    st.lists(st.lists(st.floats(width=16), max_size=100), max_size=4),
    st.lists(st.sampled_from([torch.float32, torch.float16, torch.float64]), min_size=4),
)
def test_any_values_in_one_launch(values, dtypes):
    tensors = [torch.tensor(v, dtype=d) for v, d in zip(values, dtypes, strict=False)]
    check(choose_backend("triton"), tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("roll", [False, True])
def test_update_is_new_minus_old(backend, dtype, roll):
    generator = torch.Generator().manual_seed(5)
    sizes = [1, 100, 5000, at_most(backend, 200_000)]
    old = [torch.randn(n, generator=generator).to(dtype) for n in sizes]
    new = [(w + 0.01 * torch.randn(w.shape, generator=generator)).to(dtype) for w in old]
    kept = [w.clone() for w in old]
    bins, delta_bins = Bins(1), Bins(1)
    measured = backend.measure_update(
        new, kept, [None] * 4, bins=bins, delta_bins=delta_bins, roll=roll
    ).host()
    for line, (a, b) in enumerate(zip(new, old, strict=True)):
        delta = a.double() - b.double() if dtype is torch.float64 else (a.float() - b.float())
        np.testing.assert_allclose(
            measured.sums[line], reference_sums(a.double()), rtol=1e-5, atol=1e-2
        )
        want = np.array(reference_sums(delta.double()))
        np.testing.assert_allclose(measured.delta_sums[line, SUMSQ], want[SUMSQ], rtol=1e-5)
        np.testing.assert_array_equal(measured.delta_sums[line, [3, 4, *COUNTS]],
                                      want[[3, 4, *COUNTS]])  # fmt: skip
        np.testing.assert_array_equal(
            delta_bins.host()[line], reference_bins(delta.double().numpy())
        )
    for room, before, after in zip(kept, old, new, strict=True):
        assert torch.equal(room, after if roll else before)


def test_dots_give_the_cosine_of_update_and_gradient(backend):
    generator = torch.Generator().manual_seed(6)
    for scale in (1.0, 1e-20, 1e-30):
        old = [torch.randn(n, generator=generator) * scale for n in (64, 20_000)]
        new = [w + 0.1 * scale * torch.randn(w.shape, generator=generator) for w in old]
        grads = [torch.randn(w.shape, generator=generator) * scale for w in old]
        dots = backend.measure_update(new, old, grads).host().dots
        for line, (a, b, g) in enumerate(zip(new, old, grads, strict=True)):
            d, g64 = (a - b).double(), g.double()
            want = [float(d @ g64), float(d @ d), float(g64 @ g64)]
            np.testing.assert_allclose(dots[line, 1:], want[1:], rtol=1e-5)
            bound = 1e-5 * np.sqrt(want[1] * want[2])
            assert abs(dots[line, 0] - want[0]) <= bound


def test_large_tensors_dots_come_from_one_block_in_five():
    generator = torch.Generator().manual_seed(7)
    old = torch.randn(400_000, generator=generator)
    grad = torch.randn(400_000, generator=generator)
    new = old - 0.01 * grad + 0.01 * torch.randn(400_000, generator=generator)
    dots = choose_backend("native").measure_update([new], [old], [grad]).dots[0]
    cosine = -dots[0] / np.sqrt(dots[1] * dots[2])
    exact = torch.nn.functional.cosine_similarity(old - new, grad, dim=0)
    assert cosine == pytest.approx(float(exact), abs=0.01)
    looked_at = (np.arange(400_000) // 2048) % 5 == 0
    assert dots[2] == pytest.approx(float(grad.double()[looked_at].square().sum()), rel=1e-5)


def test_values_at_or_beyond_the_ends_are_counted(backend):
    x = torch.tensor([-1.0, -0.95, -0.9, 0.0, 0.95, 0.96, 2.0])
    ends = np.array([[-0.95, 0.95], [-np.inf, np.inf]], dtype=np.float32)
    outside = backend.measure([x, x], ends=ends).host().outside
    assert outside.tolist() == [5.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(50, 12), (3, 12, 7, 5)])
def test_active_units_are_counted_in_a_sample_of_rows(backend, dtype, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(8)).to(dtype)
    units, inner = shape[1], int(np.prod(shape[2:]))
    for step in (1, 3):
        counters = Activity(units, inner, step, 0.5, torch.zeros(units, dtype=torch.int32))
        counters.totals = torch.zeros(units)
        backend.measure([x, x], activity=[counters, None])
        rows = x.float().reshape(-1, units, inner).permute(0, 2, 1).reshape(-1, units)[::step]
        assert counters.counts.tolist() == (rows.abs() > 0.5).sum(0).tolist()
        assert counters.totals.tolist() == pytest.approx(rows.abs().sum(0).tolist(), rel=1e-5)


def test_native_gives_the_same_bits_with_any_number_of_threads():
    tensors = [torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (10, 700_000)]
    native, before = choose_backend("native"), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = native.measure(tensors, bins=(one_bins := Bins(7)))
        torch.set_num_threads(4)
        four = native.measure(tensors, bins=(four_bins := Bins(7)))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(one.sums, four.sums)
    np.testing.assert_array_equal(one_bins.host(), four_bins.host())


def test_torch_backend_never_waits_for_the_device():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func.name())
            return func(*args, **(kwargs or {}))

    tensors = [torch.randn(n) for n in (10, 5000, 0)]
    with Watch() as watch:
        choose_backend("torch").measure(tensors, bins=Bins(7))
        choose_backend("torch").measure_update(
            tensors, tensors, tensors, bins=Bins(7), delta_bins=Bins(7)
        )
    assert watch.names
    assert not {"aten::_local_scalar_dense", "aten::item"} & set(watch.names)


def test_bins_add_up_over_calls(backend):
    first, second = torch.randn(5000), torch.randn(5000)
    together, apart = Bins(7), Bins(7)
    backend.measure([first], bins=together)
    backend.measure([second], bins=together)
    backend.measure([first, second], bins=apart)
    np.testing.assert_array_equal(together.host()[0], apart.host().sum(axis=0))


@pytest.mark.parametrize("backend", ["native", "torch", "triton"])
@pytest.mark.parametrize("power", [-30, -20, -8, 0, 8, 14, 18, 30])
def test_thin_sums_are_those_of_the_whole_measurement(backend, power):
    torch.manual_seed(0)
    tensors = [
        torch.randn(size, dtype=torch.float64).mul(10.0**power).to(dtype)
        for size in (1, 31, 2048, 5000)
        for dtype in (torch.float32, torch.float64)
    ]
    tensors += [torch.zeros(3000), torch.tensor([1.0, np.nan, np.inf, -np.inf, 2.0]).repeat(500)]
    chosen = choose_backend(backend)
    thin, whole = chosen.measure(tensors, thin=True).host(), chosen.measure(tensors).host()
    for place in (sums.COUNT, sums.NAN, sums.POSINF, sums.NEGINF):
        np.testing.assert_array_equal(thin.sums[:, place], whole.sums[:, place])
    np.testing.assert_allclose(sums.norms(thin.sums), sums.norms(whole.sums), rtol=1e-6)
    scale = sums.norms(whole.sums) * np.sqrt(whole.sums[:, sums.COUNT])
    np.testing.assert_array_less(
        np.abs(thin.sums[:, sums.SUM] - whole.sums[:, sums.SUM]), 1e-6 * scale + 1e-300
    )


@pytest.mark.parametrize("backend", ["native"])
def test_one_thin_tensor_alone(backend):
    x = torch.randn(3000)
    found = choose_backend(backend).measure([x], thin=True).sums[0]
    assert found[sums.SUM] == pytest.approx(float(x.double().sum()), rel=1e-5, abs=1e-4)
    assert found[sums.SUMSQ] == pytest.approx(float(x.double().square().sum()), rel=1e-6)
    # The next one is whole again.
    assert choose_backend(backend).measure([x]).sums[0, sums.MAX] == float(x.max())


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("thin", [True, False])
def test_what_comes_several_times_running_has_the_same_sums_each_time(backend, thin):
    """A container's output is its last child's."""
    torch.manual_seed(0)
    a, b, empty = torch.randn(70_000), torch.randn(200_000), torch.empty(0)
    tensors = [a, a, a[:3000], b.view(100, 2000), b, b, a, empty, empty, a.bfloat16(), a[:1]]
    chosen = choose_backend(backend)
    together = chosen.measure(tensors, thin=thin).host().sums
    for line, tensor in zip(together, tensors, strict=True):
        alone = chosen.measure([tensor], thin=thin).host().sums[0]
        np.testing.assert_allclose(line, alone, rtol=1e-9)
