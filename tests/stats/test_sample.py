"""Sampled positions: stable, spread, and what the kernel fetches is what they say."""

import subprocess
import sys

import pytest
import torch

from torchvitals.stats import sample
from torchvitals.stats.sample import LINE, Plan, stable_hash


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_kernel_and_operators_fetch_the_same_elements(dtype, monkeypatch):
    sizes = [1, 1024, 1025, 1040, 5000, 123_457]
    tensors = [torch.randn(n).to(dtype) for n in sizes]
    names = [f"layer{n}" for n in sizes]
    plan = Plan(names, tensors, 1024)
    by_kernel, by_operators = plan.room(tensors), plan.room(tensors)
    plan.fetch(tensors, by_kernel)
    monkeypatch.setattr(sample, "kernel", lambda: None)
    plan.fetch(tensors, by_operators)
    for line, tensor in enumerate(tensors):
        assert torch.equal(by_kernel[line], by_operators[line])
        positions = plan.positions(line, tensor)
        assert len(set(positions.tolist())) == len(positions)  # no element twice
        assert torch.equal(tensor.to(by_kernel[line].dtype)[positions], by_kernel[line])


def test_small_tensors_are_looked_at_whole():
    tensor = torch.randn(1000)
    plan = Plan(["w"], [tensor], 1024)
    room = plan.room([tensor])
    plan.fetch([tensor], room)
    assert torch.equal(room[0], tensor)


def test_positions_depend_on_the_name_and_nothing_else():
    tensor = torch.zeros(1_000_000)
    a = Plan(["a"], [tensor], 1024).positions(0, tensor)
    assert torch.equal(a, Plan(["a"], [tensor], 1024).positions(0, tensor))
    assert not torch.equal(a, Plan(["b"], [tensor], 1024).positions(0, tensor))
    code = "from torchvitals.stats.sample import stable_hash; print(stable_hash('blocks.0.weight'))"
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONHASHSEED": "7", "PATH": ""},
    )  # fmt: skip
    assert int(other.stdout) == stable_hash("blocks.0.weight")


def test_lines_are_spread_over_the_whole_tensor_at_an_odd_stride():
    tensor = torch.zeros(1_000_000)
    plan = Plan(["w"], [tensor], 1024)
    assert plan.stride[0] % 2 == 1
    lines = (plan.positions(0, tensor)[::LINE] // LINE).sort().values
    gaps = lines.diff()
    assert gaps.max() <= 2 * 1_000_000 // LINE // 64
    assert plan.sizes == [1024]


def test_part_of_a_plan():
    tensors = [torch.randn(n) for n in (5000, 10, 9000)]
    plan = Plan(["a", "b", "c"], tensors, 64)
    part = plan.only([2, 0])
    rooms = part.room([tensors[2], tensors[0]])
    part.fetch([tensors[2], tensors[0]], rooms)
    assert torch.equal(rooms[0], tensors[2][plan.positions(2, tensors[2])])
    assert torch.equal(rooms[1], tensors[0][plan.positions(0, tensors[0])])
    assert plan.only([2, 0]) is part
    assert plan.only([0, 1, 2]) is plan


def test_all_tensors_in_another_order():
    """An optimizer may hold the model's parameters in an order of its own."""
    tensors = [torch.randn(n) for n in (5000, 10, 9000)]
    plan = Plan(["a", "b", "c"], tensors, 64)
    order = [2, 0, 1]
    part = plan.only(order)
    rooms = part.room([tensors[k] for k in order])
    part.fetch([tensors[k] for k in order], rooms)
    for room, k in zip(rooms, order, strict=True):
        assert torch.equal(room, tensors[k][plan.positions(k, tensors[k])])
