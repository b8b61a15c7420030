"""Gradients explode: recurrent weights that are too large, over 60 steps.

python examples/gallery/explosion.py            the mistake
python examples/gallery/explosion.py --fixed    without it
"""

import argparse

import torch
from torch import nn

import torchvitals
from torchvitals.views.findings_text import print_diagnosis

parser = argparse.ArgumentParser()
parser.add_argument("--fixed", action="store_true")
fixed = parser.parse_args().fixed


class Average(nn.Module):
    """Reads numbers one by one and tells the mean of the last ones."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, 64, batch_first=True)
        self.out = nn.Linear(64, 1)
        if fixed:  # keeps the length of what it carries
            nn.init.orthogonal_(self.rnn.weight_hh_l0)
        else:  # looks small, but 64 of them triple what they carry
            nn.init.normal_(self.rnn.weight_hh_l0, std=0.4)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(numbers)
        return self.out(states[:, -1])


torch.manual_seed(0)
model = Average()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

with torchvitals.watch(model, optimizer, every=5) as monitor:
    for _ in range(200):
        numbers = torch.randn(32, 60, 1)
        loss = nn.functional.mse_loss(model(numbers), numbers[:, -4:].mean(dim=1))
        optimizer.zero_grad()
        loss.backward()
        if fixed:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        monitor.log(loss=loss)

print(f"The loss at the end: {loss:.2g}\n")
print_diagnosis(monitor.path)
