"""The copy of the weights: right whenever it is used, made anew only where that is needed."""

import pytest
import torch

from torchvitals.probes.keeper import Keeper
from torchvitals.probes.turns import TURNS
from torchvitals.stats.native.backend import NativeBackend
from torchvitals.stats.torch import TorchBackend

MANY = 80


@pytest.fixture(params=["native", "torch"])
def kept(request, monkeypatch):
    """Weights, their keeper, and the steps in which all of them were copied."""
    backend = NativeBackend() if request.param == "native" else TorchBackend()
    torch.manual_seed(0)
    tensors = [torch.nn.Parameter(torch.randn(40)) for _ in range(MANY)]
    keeper = Keeper([f"w{k}" for k in range(MANY)], tensors, backend)
    return Training(tensors, keeper, backend, monkeypatch)


class Training:
    def __init__(self, tensors, keeper, backend, monkeypatch):
        self.tensors, self.keeper, self.step_number = tensors, keeper, 0
        self.copied = []
        original = backend.copy

        def copy(source, target):
            self.copied.append(self.step_number)
            original(source, target)

        monkeypatch.setattr(backend, "copy", copy)

    def step(self, writes=1):
        self.step_number += 1
        self.keeper.keep(self.step_number)
        right = all(map(torch.equal, self.keeper.old, self.tensors))
        with torch.no_grad():
            for tensor, old in zip(self.tensors, self.keeper.old, strict=True):
                for _ in range(writes):
                    tensor.mul_(0.9)
                old.copy_(tensor)  # what the kernel does on its way
        self.keeper.rolled(self.step_number)
        return right


def test_steps_alike_need_one_copy(kept):
    assert all(kept.step(writes=3) for _ in range(6))
    assert kept.copied == [1]


@pytest.mark.parametrize("line", [0, MANY // 2, MANY - 1])
def test_a_write_that_the_counter_tells_is_seen_at_once(kept, line):
    for _ in range(3):
        kept.step()
    with torch.no_grad():
        kept.tensors[line][3] = 7.0
    assert kept.step()
    assert kept.copied == [1, 4]
    assert all(kept.step() for _ in range(3))
    assert kept.copied == [1, 4]


def test_an_optimizer_of_changing_habits_is_asked_after_each_step(kept):
    assert all(kept.step(writes=1 + n % 3) for n in range(12))
    learnt = len(kept.copied)
    assert all(kept.step(writes=1 + n % 3) for n in range(12))
    assert len(kept.copied) == learnt


def test_a_write_around_the_counter_into_all_is_seen_at_once(kept):
    for _ in range(3):
        kept.step()
    for tensor in kept.tensors:
        tensor.data.add_(1.0)
    assert kept.step()
    assert kept.copied == [1, 4]


def test_a_write_around_the_counter_into_one_is_seen_at_some_turn_and_then_at_once(kept):
    for _ in range(3):
        kept.step()
    for _ in range(TURNS):
        kept.tensors[5].data.add_(1.0)
        kept.step()
    assert len(kept.copied) > 1
    for line in (0, 30, MANY - 1):
        kept.tensors[line].data.add_(1.0)
        assert kept.step()


def test_weights_that_were_moved_are_copied_anew(kept):
    for _ in range(3):
        kept.step()
    for tensor in kept.tensors:
        tensor.data = tensor.data.clone()
    assert kept.step()
    assert kept.copied == [1, 4]


def test_a_step_in_between_that_was_not_measured_means_a_copy(kept):
    kept.step()
    kept.keeper.rolled(None)
    assert kept.step()
    assert kept.copied == [1, 2]
