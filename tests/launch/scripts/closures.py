"""LBFGS, whose step calls a closure several times, then SGD with a closure: a second phase."""

import torch
from torch import nn

torch.manual_seed(3)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
x = torch.randn(32, 5)
y = torch.tanh(x[:, :1] - x[:, 1:2])


def train(optimizer, steps):
    def closure():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(steps):
        print("loss", optimizer.step(closure).item().hex())


train(torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4), 40)
train(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), 200)
