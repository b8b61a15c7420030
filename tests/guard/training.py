"""A small training whose batches are a function of their number, so that runs can be compared."""

import copy

import torch
from torch import nn

BAD = "bad"
NAN = "nan"


class Training:
    """Batches by number; `BAD` is one scaled up, `NAN` one with a NaN in it."""

    def __init__(self, make_optimizer, model=None, seed=0):
        torch.manual_seed(seed)
        self.model = (
            nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)) if model is None else model
        )
        self.optimizer = make_optimizer(self.model.parameters())

    def loss(self, batch, scale=1.0):
        number, kind = batch if isinstance(batch, tuple) else (batch, None)
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(16, 4, generator=generator)
        y = torch.randn(16, 2, generator=generator)
        if kind == BAD:
            y = y * 1e5
        if kind == NAN:
            x = x.clone()
            x[0, 0] = float("nan")
        return (self.model(x) - y).square().mean() * scale

    def step(self, batch):
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, batches):
        for batch in batches:
            self.step(batch)
        return self

    def everything(self):
        """Copies of weights, buffers, optimizer state and settings."""
        return copy.deepcopy(
            {
                "model": dict(self.model.state_dict()),
                "optimizer": self.optimizer.state_dict(),
            }
        )


def same(a, b):
    """Bit for bit, whatever it is made of."""
    if isinstance(a, torch.Tensor):
        if not (isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype is b.dtype):
            return False
        a, b = a.detach().contiguous(), b.detach().contiguous()
        return (
            a.view(-1).view(torch.uint8).equal(b.view(-1).view(torch.uint8)) if a.numel() else True
        )
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (a != a and b != b)
