"""The Triton kernel beyond what all backends are asked: it compiles, repeats itself, is lazy."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import torchvitals
from torchvitals.record import UnsupportedTensor
from torchvitals.stats.backend import Bins, choose_backend
from torchvitals.stats.by_device import ByDevice
from torchvitals.stats.triton import usable

COMPILE = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from torchvitals.stats.triton import kernel as k

FLAGS = ("ENDS", "CHANGE", "GRADS", "BINS", "DELTA_BINS", "GRAD_BINS")
numbers = {"num_blocks": "i32", "stride": "i32"}
pointers = {"table": "*i64", "entry_of": "*i32", "ends": "*fp32", "partials": "*fp64"}
counts = dict.fromkeys(("bins", "delta_bins", "grad_bins"), "*i32")
kinds = {"WIDE": "constexpr", **dict.fromkeys(FLAGS, "constexpr")}

def binary(function, signature, constants):
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"num_warps": 8}).asm

for wide, flag in ((tl.float32, True), (tl.float64, True), (tl.float32, False)):
    signature = pointers | numbers | counts | kinds
    assert binary(k.measure, signature, {"WIDE": wide, **dict.fromkeys(FLAGS, flag)})["cubin"]
signature = {"table": "*i64", "partials": "*fp64", "out": "*fp64"}
signature |= {"num_blocks": "i32", "num_lines": "i32"}
assert binary(k.fold, signature, {})["cubin"]
print("compiled")
"""


def run(code, **env):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_kernels_compile_for_a_real_card(tmp_path):
    found = run(COMPILE, TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    assert found == "compiled"


def test_triton_is_imported_only_when_it_serves():
    # torch.utils.flop_counter, which watch() needs, imports triton by itself.
    code = (
        "import sys, torch, torchvitals, torchvitals.stats.backend as b;"
        "b.choose_backend().measure([torch.ones(3)]);"
        "print('triton' in sys.modules, end=' ');"
        "torchvitals.watch;"
        "print(any(name.startswith('torchvitals.stats.triton') for name in sys.modules))"
    )
    assert run(code) == "False False"


def test_without_its_interpreter_cpu_tensors_go_to_torch():
    code = (
        "import torch; from torchvitals.stats.backend import choose_backend;"
        "x = [torch.ones(3)]; triton = choose_backend('triton');"
        "print(triton.measure(x).sums[0, 1].item(), triton.measure_update(x, x, x).dots.tolist())"
    )
    assert run(code, TRITON_INTERPRET="0") == "3.0 [[0.0, 0.0, 3.0]]"


def train(path, backend):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with torchvitals.watch(
        model, optimizer, run=path, every=1, backend=backend, updates="exact", machine=False,
        clocks=False, diagnose=False,
    ):  # fmt: skip
        for _ in range(3):
            model(torch.randn(12, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_a_training_watched_with_triton_has_the_values_of_torch(tmp_path):
    weights = [train(tmp_path / name, name) for name in ("triton", "torch")]
    assert torch.equal(*weights)
    with (
        torchvitals.open_run(tmp_path / "triton") as ours,
        torchvitals.open_run(tmp_path / "torch") as theirs,
    ):
        keys = [key for key in theirs.keys() if key.stat != "overhead_s"]
        assert set(keys) <= set(ours.keys())
        for key in keys:
            np.testing.assert_allclose(
                ours.series(key).values, theirs.series(key).values, rtol=2e-6, err_msg=str(key)
            )
        for kind, site in theirs.histogram_sites():
            found, wanted = (h.histograms(site, kind).counts.sum(axis=0) for h in (ours, theirs))
            np.testing.assert_array_equal(found, wanted)


def test_the_same_bits_every_time_and_in_any_company():
    x, y = (torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (9000, 5000))
    triton = choose_backend("triton")
    together = triton.measure([x, y.double(), y]).host().sums
    np.testing.assert_array_equal(together, triton.measure([x, y.double(), y]).host().sums)
    np.testing.assert_array_equal(together[0], triton.measure([x]).host().sums[0])


def test_one_launch_measures_the_whole_list(monkeypatch):
    from torchvitals.stats.triton import backend

    class Counted:
        def __init__(self, kernel):
            self.kernel, self.launches = kernel, 0

        def __getitem__(self, grid):
            self.launches += 1
            return self.kernel[grid]

    counted = Counted(backend.k.measure), Counted(backend.k.fold)
    monkeypatch.setattr(backend.k, "measure", counted[0])
    monkeypatch.setattr(backend.k, "fold", counted[1])
    tensors = [torch.randn(n).to(d) for n in (10, 70) for d in (torch.float32, torch.bfloat16)]
    choose_backend("triton").measure_update(
        tensors, tensors, tensors, bins=Bins(7), delta_bins=Bins(7), with_grads=True,
        grad_bins=Bins(7),
    )  # fmt: skip
    assert [one.launches for one in counted] == [1, 1]


def test_dots_are_over_the_gradients_that_are_there():
    old = [torch.randn(100), torch.randn(5000)]
    new = [w + 0.1 for w in old]
    grads = [None, torch.randn(5000)]
    expected = choose_backend("torch").measure_update(new, old, grads, with_grads=True).host()
    found = choose_backend("triton").measure_update(new, old, grads, with_grads=True).host()
    assert found.dots[0].tolist() == [0.0, 0.0, 0.0]
    np.testing.assert_allclose(found.dots, expected.dots, rtol=1e-9)
    np.testing.assert_allclose(found.grad_sums, expected.grad_sums, rtol=1e-6)


def test_without_a_gpu_torch_serves_and_the_reason_is_known():
    if torch.cuda.is_available():
        assert usable.trouble() is None
        assert ByDevice(choose_backend("torch")).on_gpu.name == "triton"
    else:
        assert usable.trouble() == "torch sees no GPU"
        assert ByDevice(choose_backend("torch")).on_gpu.name == "torch"


class Elsewhere(torch.Tensor):
    """A CPU tensor that says it is on a GPU."""

    @property
    def is_cpu(self):
        return False

    @property
    def device(self):
        return torch.device("cuda", 0)


def elsewhere(*values):
    return torch.tensor(values).as_subclass(Elsewhere)


def test_the_c_kernel_never_reads_an_address_on_a_gpu():
    with pytest.raises(UnsupportedTensor, match="CPU tensors only, this one is on cuda:0"):
        choose_backend("native").measure([elsewhere(1.0, 2.0)])


class Noting:
    """A backend that notes what it is given."""

    def __init__(self, name):
        self.name, self.calls = name, []

    def measure(self, tensors, **_others):
        self.calls.append(len(tensors))

    def measure_update(self, new, _old, _grads, **_others):
        self.calls.append(len(new))


def test_each_list_goes_to_the_backend_of_its_device():
    cpu, gpu, anywhere = (Noting(name) for name in ("native", "triton", "torch"))
    routed = ByDevice(cpu)
    routed.on_gpu, routed._anywhere = gpu, anywhere
    here, there = torch.ones(2), elsewhere(1.0, 2.0)
    routed.measure([here])
    routed.measure([there, there])
    routed.measure([here, there, here])
    routed.measure_update([here], [here], [None])
    routed.measure_update([there] * 4, [there] * 4, [there, None, None, None])
    routed.measure_update([there] * 5, [there] * 5, [here, None, None, None, None])
    assert (cpu.calls, gpu.calls, anywhere.calls) == ([1, 1], [2, 4], [3, 5])


@pytest.mark.parametrize("first", ["native", "torch"])
def test_histograms_follow_a_model_that_moves(first):
    routed = ByDevice(choose_backend("native"))
    x = torch.randn(500)
    bins = Bins(1)
    choose_backend(first).measure([x], bins=bins)
    routed.measure([x], bins=bins)
    assert int(bins.host().sum()) == 1000
