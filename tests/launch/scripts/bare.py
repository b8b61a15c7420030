"""No module anywhere: there is nothing to watch. With an argument it does not even train."""

import sys

import torch

x = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.1)
if not sys.argv[1:]:
    for _ in range(3):
        optimizer.zero_grad()
        x.square().sum().backward()
        optimizer.step()
print(x.tolist())
