"""One batch is not a number: something for a guard, or to stop at."""

import time

import torch
from torch import nn

torch.manual_seed(14)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 4001):
    x = torch.randn(8, 4)
    if step == 30:
        x[0] = float("nan")
    loss = (model(x) - x[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex(), flush=True)
    if loss.isnan():
        time.sleep(0.01)  # with these weights all are: somebody should stop this
    elif step > 100:
        break
