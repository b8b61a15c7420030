"""The loss does not decrease: the optimizer holds another copy's weights.

python examples/gallery/loss_not_decreasing.py            the mistake
python examples/gallery/loss_not_decreasing.py --fixed    without it
"""

import argparse
import copy

import torch
from torch import nn

import torchvitals
from torchvitals.views.findings_text import print_diagnosis

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
fixed = parser.parse_args().fixed

torch.manual_seed(0)
inputs = torch.randn(2000, 16)
targets = (inputs[:, :4].sum(dim=1) > 0).long() + 2 * (inputs[:, 4] > 0).long()

model = nn.Sequential(
    nn.Linear(16, 64),
    nn.ReLU(),
    nn.Linear(64, 64),
    nn.ReLU(),
    nn.Linear(64, 4),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

# The first weights are kept to compare with later, and the copy is trained:
# the optimizer was made for the original.
first = model
model = copy.deepcopy(first)
if fixed:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with torchvitals.watch(model, optimizer, every=5) as monitor:
    for _ in range(300):
        chosen = torch.randint(len(inputs), (64,))
        loss = nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen])
        model.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)

print(f"The loss at the end: {loss:.2g}\n")
print_diagnosis(monitor.path)
