"""Small trainings for the tests, and values computed by hand next to the monitor."""

import torch
from torch import nn


class Net(nn.Module):
    """Bare parameter, nested blocks, a layer called twice, a shared weight."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)) for _ in range(2)
        )
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 8, bias=False)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.head.weight

    def forward(self, x):
        x = x * self.scale
        for block in self.blocks:
            x = x + block(self.norm(x))
        return self.tied(self.head(x))


def make_net(seed=0):
    torch.manual_seed(seed)
    return Net()


def batches(num, seed=1, size=16):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 8, generator=generator) for _ in range(num)]


def loss_of(model, x):
    return (model(x) - x.flip(1)).square().mean()


def train(model, optimizer, data, *, clip=None):
    losses = []
    for x in data:
        loss = loss_of(model, x)
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
