"""The loss of a step, out of its backward passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchvitals.probes.losses import Losses


@pytest.fixture
def losses() -> Iterator[Losses]:
    before, scale = torch.autograd.backward, torch.amp.GradScaler.scale
    found = Losses()
    found.open()
    yield found
    found.close()
    assert torch.autograd.backward is before
    assert torch.amp.GradScaler.scale is scale


def loss(value: float) -> torch.Tensor:
    return torch.tensor([value, 0.0], requires_grad=True).sum()


def test_one_pass(losses: Losses) -> None:
    assert losses.end_step() is None
    loss(3.0).backward()
    assert losses.end_step() == 3.0
    assert losses.end_step() is None


def test_micro_batches_are_averaged(losses: Losses) -> None:
    for value in (1.0, 2.0, 6.0):
        loss(value).backward()
    assert losses.end_step() == 3.0


@pytest.mark.parametrize("divide", [lambda x: x / 4, lambda x: x * 0.25, lambda x: (x / 4) / 1])
def test_divided_micro_batches_are_not_averaged_again(losses: Losses, divide: object) -> None:
    for num in (4, 4, 3, 1):  # the rest of an epoch is fewer
        for value in range(num):
            divide(loss(float(value))).backward()  # type: ignore[operator]
        assert losses.end_step() == pytest.approx(sum(range(num)) / num)


def test_a_common_number_of_tokens(losses: Losses) -> None:
    num_tokens = torch.tensor(40)
    for total in (30.0, 50.0):
        (loss(total) / num_tokens).backward()
    assert losses.end_step() == pytest.approx(2.0)


def test_each_its_own_number_of_tokens(losses: Losses) -> None:
    for total, num in ((30.0, 10), (50.0, 50)):
        (loss(total) / torch.tensor(num)).backward()
    assert losses.end_step() == pytest.approx(2.0)


def test_terms_are_added(losses: Losses) -> None:
    loss(1.0).backward()
    loss(2.0).backward()
    torch.autograd.backward([loss(3.0), loss(4.0)])
    assert losses.end_step() == 10.0


def test_of_a_closure_the_first_call_counts(losses: Losses) -> None:
    losses.begin_step()
    for value in (5.0, 4.0, 3.0):
        loss(value).backward()
    assert losses.end_step() == 5.0


def test_a_scaled_loss(losses: Losses) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for value in (1.0, 3.0):
        scaler.scale(loss(value) / 2).backward()
    assert losses.end_step() == pytest.approx(2.0)


def test_what_another_optimizer_took(losses: Losses) -> None:
    loss(1.0).backward()
    losses.claim()
    loss(2.0).backward()
    assert losses.end_step() == 2.0
    loss(3.0).backward()
    losses.claim()  # it was the only one: both had it
    assert losses.end_step() == 3.0


def test_roots_that_are_no_losses(losses: Losses) -> None:
    x = torch.ones(3, requires_grad=True)
    (x * 2).backward(torch.ones(3))
    assert losses.end_step() is None
