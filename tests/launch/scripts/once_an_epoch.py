"""Gradients of a whole epoch, one step, zero_grad once an epoch; a model made of methods."""

import torch
from torch import nn


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


class Autoencoder(nn.Module):
    """Never called itself: its methods are."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 3)
        self.decoder = nn.Linear(3, 6)
        self.scale = nn.Parameter(torch.ones(1))

    def loss(self, x):
        return Square.apply(self.scale * self.decoder(torch.tanh(self.encoder(x))) - x).mean()


def main():
    torch.manual_seed(2)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = torch.randn(5, 4, 3) @ torch.randn(3, 6)  # three numbers tell the other three
    for _ in range(240):
        optimizer.zero_grad()
        parts = []
        for batch in data:
            loss = model.loss(batch)
            loss.backward()
            parts.append(loss.item())
        optimizer.step()
        print("loss", (sum(parts) / len(parts)).hex())


if __name__ == "__main__":
    main()
