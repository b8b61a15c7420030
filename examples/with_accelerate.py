"""Accelerate: a tracker that also watches."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the library's own imports
    from accelerate import Accelerator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchvitals
from torchvitals.integrations.accelerate import VitalsTracker

torch.manual_seed(0)
tracker = VitalsTracker(run="runs/accelerate", every=5)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=[tracker])
accelerator.init_trackers("sums", config={"lr": 1e-2})
inputs = torch.randn(256, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), 16, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
tracker.watch(accelerator, model, optimizer)
for _ in range(4):
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
accelerator.end_training()

history = torchvitals.open_run("runs/accelerate")
seen = history.series("loss")
print(f"loss {seen.values[0]:.3f} → {seen.values[-1]:.3f} in {history.last_step} steps")
