"""Outputs that wait to be measured together: only those nobody writes into."""

import torch
from torch import nn

from torchvitals.probes.waiting import LIGHT, NUMBER, Site, Waiting


def site(line=0):
    return Site(
        name=f"layer{line}", line=line, ends=(0, 0), floor=None, module=nn.ReLU(), alone=True
    )


def tried(found, tensor):
    found.watch(tensor)
    return found.stayed()


def test_a_fresh_output_that_stayed_as_it_was_may_wait():
    assert tried(site(), torch.randn(4))


def test_one_that_was_written_into_may_not():
    found, output = site(), torch.randn(4)
    found.watch(output)
    output.add_(1.0)
    assert not found.stayed()


def test_what_was_overwritten_while_it_waited_is_lost_and_does_not_wait_again():
    waiting, good, bad = Waiting(), site(0), site(1)
    outputs = [torch.randn(4), torch.randn(4)]
    for one, output in zip((good, bad), outputs, strict=True):
        assert tried(one, output)
        waiting.settle(one)
        waiting.add(one, output)
    outputs[1].mul_(2.0)
    sites, tensors, lost = waiting.take()
    assert (sites, lost) == ([good], [bad])
    assert tensors == (outputs[0],)
    assert set(waiting.settled) == set(waiting.light) == {good.module}
    assert not bad.alone
    assert waiting.take() == ([], (), [])


def test_only_so_many_and_so_much_may_wait():
    waiting, small, large = Waiting(), site(0), site(1)
    assert tried(small, torch.zeros(LIGHT))
    assert tried(large, torch.zeros(NUMBER, LIGHT))
    waiting.settle(small)
    waiting.settle(large)
    assert set(waiting.light) == {small.module}
    for _ in range(NUMBER):
        assert not waiting.full
        waiting.add(small, torch.zeros(LIGHT))
    assert waiting.full
    waiting.take()
    waiting.add(large, torch.zeros(NUMBER, LIGHT))
    assert waiting.full
    waiting.forget()
    assert not waiting.settled
    assert not waiting.light


def test_outputs_that_have_grown_are_weighed_again():
    waiting, found = Waiting(), site()
    assert tried(found, torch.zeros(4))
    waiting.settle(found)
    waiting.add(found, torch.zeros(LIGHT + 1))
    waiting.take()
    assert found.size == LIGHT + 1
    assert not waiting.light
    assert waiting.settled


def test_versions_are_those_of_each_call():
    """A module that is called twice may put out a fresh tensor and one written into before."""
    waiting, found = Waiting(), site()
    assert tried(found, torch.randn(4))
    waiting.settle(found)
    outputs = [torch.randn(4), torch.randn(4).relu_()]
    for output in outputs:
        waiting.add(found, output)
    assert waiting.take() == ([found, found], tuple(outputs), [])
