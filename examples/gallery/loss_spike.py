"""The loss spikes: one file of the data is in another unit.

python examples/gallery/loss_spike.py            the mistake
python examples/gallery/loss_spike.py --fixed    without it
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torchvitals
from torchvitals.views.findings_text import print_diagnosis

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
fixed = parser.parse_args().fixed

torch.manual_seed(0)
houses = torch.randn(9600, 8)  # standardised features
prices = (houses[:, :4] * houses[:, 4:]).sum(dim=1, keepdim=True)

# One day's file has its lengths in centimetres, not in metres.
houses[6400:6464] *= 100
if fixed:  # what can't be is left out when the data are read
    usual = houses.abs().amax(dim=1) < 10
    houses, prices = houses[usual], prices[usual]

model = nn.Sequential(
    nn.Linear(8, 64),
    nn.ReLU(),
    nn.Linear(64, 64),
    nn.ReLU(),
    nn.Linear(64, 1),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(houses, prices), batch_size=64)

with torchvitals.watch(model, optimizer, every=5) as monitor:
    for x, y in monitor.data(loader):
        loss = nn.functional.huber_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)

print(f"The loss at the end: {loss:.2g}\n")
print_diagnosis(monitor.path)
