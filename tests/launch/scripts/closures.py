"""LBFGS, whose step calls a closure several times, then SGD with a closure: a second phase."""

import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
x, y = torch.randn(32, 5), torch.randn(32, 1)


def train(optimizer, steps):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        print("loss", optimizer.step(closure).item().hex())


train(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4), 3)
train(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), 4)
