"""A layer does not learn: the new head came after the optimizer.

python examples/gallery/layer_not_learning.py            the mistake
python examples/gallery/layer_not_learning.py --fixed    without it
"""

import argparse

import torch
from torch import nn

import torchvitals
from torchvitals.views.findings_text import print_diagnosis

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
fixed = parser.parse_args().fixed


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, stride=2)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, stride=2)
        self.head = nn.Linear(32 * 4 * 4, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.conv2(torch.relu(self.conv1(images))))
        return self.head(x.flatten(1))


torch.manual_seed(0)
patterns = torch.randn(10, 1, 16, 16)
model = Classifier()  # as it was trained on 100 classes

if fixed:
    model.head = nn.Linear(32 * 4 * 4, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.head = nn.Linear(32 * 4 * 4, 10)  # the optimizer still holds the old one

with torchvitals.watch(model, optimizer, every=5) as monitor:
    for _ in range(120):
        targets = torch.randint(10, (32,))
        images = patterns[targets] + 2 * torch.randn(32, 1, 16, 16)
        loss = nn.functional.cross_entropy(model(images), targets)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)

print(f"The loss at the end: {loss:.2g}\n")
print_diagnosis(monitor.path)
