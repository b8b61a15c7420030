"""Calls torchvitals.watch() itself."""

import torch
from torch import nn

import torchvitals

torch.manual_seed(8)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torchvitals.watch(model, optimizer, run="own", every=1) as monitor:
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3)).square().mean()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)
print(monitor.path, monitor.step_number)
