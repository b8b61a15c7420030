"""Nothing waits for a device: no value is read on the training thread, few operators are added.

There is no GPU here. With the torch backend, operators that bring a value to the host are counted
as they are dispatched, and the number of operators stands for kernel launches.
"""

from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torchvitals

READS = {"aten._local_scalar_dense.default", "aten.item.default", "aten.equal.default"}


class Counting(TorchDispatchMode):
    """Counts operators."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))


def net(layers):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(layers)))


def operators(tmp_path, layers, watch):
    """Operators of one monitored step."""
    model = net(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    monitor = None
    if watch is not None:
        monitor = torchvitals.watch(
            model, optimizer, run=tmp_path, every=1, backend="torch", machine=False, **watch
        )
    # One matrix a step has its rank measured at first: all have had their turn before the last.
    for step in range(layers + 2):
        x = torch.ones(4, 8)
        counting = Counting()
        if step == layers + 1:
            with counting:
                model(x).square().mean().backward()
                optimizer.step()
        else:
            model(x).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    return counting.counts


WATCH = {
    "gradients": {"activations": False, "parameters": False, "updates": False},
    "sampled updates": {"activations": False, "gradients": False, "updates": "sampled"},
    "exact updates": {"activations": False, "gradients": False, "updates": "exact"},
    "activations": {"gradients": False, "parameters": False, "updates": False},
    "everything": {"updates": "exact"},
}


@pytest.mark.parametrize("what", WATCH)
def test_no_value_is_read_on_the_training_thread(tmp_path, what):
    bare = operators(None, 3, None)
    counts = operators(tmp_path / "run", 3, WATCH[what]) - bare
    assert not {name: n for name, n in counts.items() if name in READS}


@pytest.mark.parametrize("what", WATCH)
def test_operators_grow_by_a_small_constant_a_tensor(tmp_path, what):
    few = sum((operators(tmp_path / "few", 3, WATCH[what]) - operators(None, 3, None)).values())
    many = sum((operators(tmp_path / "many", 9, WATCH[what]) - operators(None, 9, None)).values())
    # What is measured in batches costs two views a tensor; a change is a difference, three dots,
    # and with sampled updates three samples, of each tensor by itself.
    a_tensor = (many - few) / 6
    assert a_tensor <= {"gradients": 2, "activations": 2, "everything": 20}.get(what, 17)
