"""An LSTM that continues a wave of two hidden frequencies.

python examples/lstm.py
vitals run examples/lstm.py
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--waves", type=int, default=1024)
parser.add_argument("--length", type=int, default=48)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--out", type=Path, default=Path("lstm.pt"))
args = parser.parse_args()


def waves(num: int) -> TensorDataset:
    """Each value of a wave, and the one that follows it."""
    time = torch.arange(args.length + 1.0)
    slow, fast = torch.rand(num, 1) * 0.2 + 0.1, torch.rand(num, 1) * 0.5 + 0.4
    phase = 2 * math.pi * torch.rand(2, num, 1)
    wave = torch.sin(slow * time + phase[0]) + 0.5 * torch.sin(fast * time + phase[1])
    wave = (wave + 0.02 * torch.randn(wave.shape)).unsqueeze(2)
    return TensorDataset(wave[:, :-1], wave[:, 1:])


class Forecast(nn.Module):
    """The next value, after each one."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, width, layers, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, time, 1) in and out."""
        return self.head(self.lstm(x)[0])


torch.manual_seed(0)
train = DataLoader(waves(args.waves), args.batch, shuffle=True)
held_out = DataLoader(waves(args.waves // 4), args.batch)
model = Forecast(args.width, args.layers)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)

losses = []
for epoch in range(1, args.epochs + 1):
    model.train()
    for inputs, targets in train:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        errors = [nn.functional.mse_loss(model(x), y).item() for x, y in held_out]
    error = sum(errors) / len(errors)
    schedule.step(error)
    print(f"epoch {epoch}: loss {losses[-1]:.5f}, held out {error:.5f}")
torch.save({"model": model.state_dict(), "losses": losses}, args.out)
