"""A mixture of experts: the router sends each sample to one; some have nothing to do."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import torchvitals
from torchvitals.testing.data import Part, clusters
from torchvitals.testing.healthy.hand import Hand
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.training import Batches


class Experts(nn.Module):
    """Eight experts, one for each sample; an expert nobody needs in a batch gets no gradient."""

    def __init__(self, width: int, num_experts: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(20, width), nn.ReLU())
        self.router = nn.Linear(width, num_experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))
            for _ in range(num_experts)
        )
        self.head = nn.Linear(width, 5)
        self.router.bias.data[5:] = -3.0  # three experts are rarely asked, if ever

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 20) → (batch, 5)."""
        x = self.stem(x)
        weight, chosen = self.router(x).softmax(-1).max(-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            places = (chosen == number).nonzero().flatten()
            if len(places):
                mixed = mixed.index_add(0, places, expert(x[places]) * weight[places, None])
        out: Tensor = self.head(x + mixed)
        return out


def mixture_of_experts(seed: int, folder: Path, steps: int | None) -> Outcome:
    """Switch-style routing without a balancing loss."""
    steps = steps or 600
    data = clusters(1000 + seed, 8000)
    model = Experts(48 if seed % 2 else 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    hand = Hand(seed, steps)
    batches = Batches(data.train, 64, seed)

    def judge(part: Part) -> tuple[float, float]:
        model.eval()
        with torch.no_grad():
            outputs = model(part.inputs)
            loss = float(nn.functional.cross_entropy(outputs, part.targets))
            right = float((outputs.argmax(-1) == part.targets).float().mean())
        model.train()
        return loss, right

    with torchvitals.watch(model, optimizer, run=folder, every=5, total_steps=steps) as monitor:
        step = 0
        while step < steps:
            for inputs, targets in monitor.data(batches):
                step += 1
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                monitor.log(loss=loss.detach())
                hand.note(loss)
                if step % 50 == 0:
                    val_loss, accuracy = judge(data.val)
                    monitor.log_eval("val", loss=val_loss, accuracy=accuracy)
                if step == steps:
                    break
    test_loss, accuracy = judge(data.test)
    return hand.outcome(test_loss=test_loss, test_accuracy=accuracy)
