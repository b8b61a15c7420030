"""What is told of a step: whether the optimizer wrote into gradients, asked of some at a time."""

import pytest
import torch

from torchvitals.probes.stepping import Roster
from torchvitals.probes.turns import TURNS
from torchvitals.stats.torch import TorchBackend

MANY = 80


@pytest.fixture
def training():
    parameters = [torch.nn.Parameter(torch.randn(3)) for _ in range(MANY)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return parameters, Roster(optimizer, TorchBackend())


def step(parameters, roster, number, touch=()):
    for parameter in parameters:
        parameter.grad = torch.ones(3)
    roster.before(number)
    for line in touch:
        parameters[line].grad.mul_(2.0)
    return roster.after(number)


def test_an_optimizer_that_leaves_gradients_alone_becomes_quiet(training):
    found = step(*training, 1)
    assert not found.touched
    assert training[1].quiet
    assert all(grad is not None for grad in found.grads)


def test_at_first_every_gradient_is_looked_at(training):
    found = step(*training, 1, touch=[7])
    assert found.touched
    assert [line for line, grad in enumerate(found.grads) if grad is None] == [7]
    assert not training[1].quiet


def test_one_that_starts_to_write_into_all_is_noticed_at_once(training):
    step(*training, 1)
    found = step(*training, 2, touch=range(MANY))
    assert found.touched
    assert found.grads == [None] * MANY
    assert not training[1].quiet
    # From then on each is looked at again.
    found = step(*training, 3, touch=[7])
    assert [line for line, grad in enumerate(found.grads) if grad is None] == [7]


def test_one_that_starts_to_write_into_one_is_noticed_at_some_turn(training):
    step(*training, 1)
    found = [step(*training, number, touch=[7]) for number in range(10, 10 * (TURNS + 1), 10)]
    assert any(one.touched for one in found)
    assert not training[1].quiet
