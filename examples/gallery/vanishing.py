"""Gradients vanish: eight layers that end in a sigmoid.

python examples/gallery/vanishing.py            the mistake
python examples/gallery/vanishing.py --fixed    without it
"""

import argparse

import torch
from torch import nn

import torchvitals
from torchvitals.views.findings_text import print_diagnosis

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
fixed = parser.parse_args().fixed


def layer(wide: int) -> nn.Module:
    if fixed:
        return nn.Sequential(nn.Linear(wide, 64), nn.LayerNorm(64), nn.ReLU())
    return nn.Sequential(nn.Linear(wide, 64), nn.Sigmoid())


torch.manual_seed(0)
inputs = torch.randn(4000, 16)
targets = (inputs @ torch.randn(16, 4)).argmax(dim=1)

model = nn.Sequential(layer(16), *(layer(64) for _ in range(7)), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with torchvitals.watch(model, optimizer, every=5) as monitor:
    for _ in range(200):
        chosen = torch.randint(len(inputs), (64,))
        loss = nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)

print(f"The loss at the end: {loss:.2g}\n")
print_diagnosis(monitor.path)
