"""Trains until a signal comes; says when it has begun."""

import sys
import time

import torch
from torch import nn

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
step = 0
try:
    while True:
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        step += 1
        if step == 5:
            print("going", flush=True)
        time.sleep(0.01)
finally:
    print("cleaned up", file=sys.stderr)
