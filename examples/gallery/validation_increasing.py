"""The validation loss increases: 400 noisy samples, seen 30 times.

python examples/gallery/validation_increasing.py            the mistake
python examples/gallery/validation_increasing.py --fixed    without it
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
truth = torch.randn(32, 4)


def samples(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(num, 32)
    return inputs, (inputs @ truth + 3 * torch.randn(num, 4)).argmax(dim=1)


loader = DataLoader(TensorDataset(*samples(400)), batch_size=40, shuffle=True)
unseen, answers = samples(2000)

model = nn.Sequential(
    nn.Linear(32, 256),
    nn.ReLU(),
    nn.Linear(256, 256),
    nn.ReLU(),
    nn.Linear(256, 4),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
best = float("inf")

with torchvitals.watch(model, optimizer, every=5) as monitor:
    for _ in range(30):
        for inputs, targets in monitor.data(loader):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss)
        with torch.no_grad():
            validation = nn.functional.cross_entropy(model(unseen), answers).item()
        monitor.log_eval("val", loss=validation)
        if fixed and validation > 1.02 * best:  # from here on it is noise
            break
        best = min(best, validation)

print(f"The validation loss: {validation:.2g} at the end, {best:.2g} at its best\n")
print_diagnosis(monitor.path)
