"""Two ranks under torchrun."""

import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(9)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
for _ in range(80):
    x = torch.randn(8, 4)
    loss = (model(x) - x[:, :1]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0:
        print("loss", loss.item().hex(), flush=True)
assert os.environ.get("PYTHONPATH", "").find("injected") < 0
# What DDP holds of the group must not be the last of it: the group's threads would be ended late.
del model, optimizer, loss
gc.collect()
dist.destroy_process_group()
