"""Inputs, loss functions, wiring and weights: training is the same, and no device is waited for."""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torchvitals
from torchvitals.probes import criterion
from torchvitals.probes.inputs import Inputs
from torchvitals.probes.loss_calls import LossCall
from torchvitals.probes.tree import Tree
from torchvitals.probes.weights import Weights
from torchvitals.stats.backend import choose_backend


def training(tmp_path, *, watch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    monitor = None
    if watch:
        monitor = torchvitals.watch(model, optimizer, run=tmp_path / "run", every=2)
    losses = []
    for _ in range(6):
        for _ in range(2):
            x, y = torch.randn(16, 8), torch.randint(5, (16,))
            loss = criterion(model(x), y) + nn.functional.mse_loss(model(x), torch.ones(16, 5))
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            losses.append(criterion(model(x), y).item())
        if monitor is not None:
            monitor.log_eval(loss=losses[-1])
    if monitor is not None:
        monitor.close()
    return losses, torch.get_rng_state().tolist()


def test_losses_and_random_numbers_are_the_same(tmp_path):
    assert training(tmp_path, watch=True) == training(tmp_path, watch=False)


class Reads(TorchDispatchMode):
    """Finds operators that read a value: on a device they would wait."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_no_value_is_read_while_training_waits():
    model = nn.Sequential(nn.Linear(8, 40), nn.Linear(40, 5))
    weights = Weights(Tree({"": model}), range(4))
    inputs = Inputs(
        {"": model}, choose_backend("torch"), on_error=lambda e: None, on_compile=lambda: None
    )
    x, y = torch.randn(600, 300, requires_grad=True), torch.zeros(600, dtype=torch.long)
    raws = []
    with Reads() as reads:
        for _ in range(3):
            weights.take()
        inputs.called("m", (torch.randn(16, 8),), {"c": torch.randn(3)}, torch.randn(16, 5))
        for name, target in (("cross_entropy", y), ("mse_loss", x), ("binary_cross_entropy", x)):
            raws.append(criterion._look(LossCall(name, x, target, False, -100)))
    assert len(reads.names) > 20
    assert not [name for name in reads.names if "local_scalar" in name or "item" in name]
    assert raws[0].is_reduced
    assert not any(raw.rows is not None and raw.rows.requires_grad for raw in raws)
