"""Ignite: a handler that watches a trainer."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the library's own imports
    from ignite.engine import create_supervised_trainer

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchvitals
from torchvitals.integrations.ignite import VitalsHandler

torch.manual_seed(0)
inputs = torch.randn(256, 8)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
trainer = create_supervised_trainer(model, optimizer, nn.MSELoss())
VitalsHandler(model, optimizer, run="runs/ignite", every=5).attach(trainer)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
trainer.run(DataLoader(data, 16, shuffle=True), max_epochs=3)

history = torchvitals.open_run("runs/ignite")
loss = history.series("loss")
print(f"loss {loss.values[0]:.3f} → {loss.values[-1]:.3f} in {history.last_step} steps")
