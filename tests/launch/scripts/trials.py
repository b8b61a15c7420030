"""A search: a model and an optimizer each trial. And tensors that are in no module."""

import torch
from torch import nn

loose = torch.zeros(3, requires_grad=True)
tuned = torch.optim.SGD([loose], lr=0.1)
(loose - 1).square().sum().backward()
tuned.step()

for width in (8, 16):
    torch.manual_seed(width)
    model = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(120):
        x = torch.randn(16, 3)
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", width, loss.item().hex())
print(loose.tolist())
