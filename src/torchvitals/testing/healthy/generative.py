"""A VAE whose KL term is warmed up: the total loss rises while all is well."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import torchvitals
from torchvitals.testing.data import images
from torchvitals.testing.healthy.hand import Hand
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.training import Batches

CODE = 8


class VAE(nn.Module):
    """256 pixels → a code → 256 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 2 * CODE))
        self.decoder = nn.Sequential(nn.Linear(CODE, width), nn.ReLU(), nn.Linear(width, 256))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The picture again, mean and log variance of the code."""
        mean, log_var = self.encoder(x).chunk(2, -1)
        code = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self.decoder(code), mean, log_var


def _terms(model: VAE, x: Tensor) -> tuple[Tensor, Tensor]:
    again, mean, log_var = model(x)
    rebuilt = F.mse_loss(again, x, reduction="none").sum(-1).mean() / 32
    kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(-1).mean()
    return rebuilt, kl


def vae(seed: int, folder: Path, steps: int | None) -> Outcome:
    """The weight of the KL term goes from 0 to 0.1 over the first half."""
    steps = steps or 600
    data = images(1000 + seed, 6000)
    model = VAE(96 if seed % 2 else 128)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    hand = Hand(seed, steps)
    batches = Batches(data.train, 64, seed)

    def judge(pictures: Tensor) -> float:
        model.eval()
        with torch.no_grad():
            rebuilt, kl = _terms(model, pictures.flatten(1))
        model.train()
        return float(rebuilt + 0.1 * kl)

    with torchvitals.watch(model, optimizer, run=folder, every=5, total_steps=steps) as monitor:
        step = 0
        while step < steps:
            for pictures, _ in monitor.data(batches):
                step += 1
                optimizer.zero_grad()
                rebuilt, kl = _terms(model, pictures.flatten(1))
                loss = rebuilt + 0.1 * min(1.0, 2 * step / steps) * kl
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                monitor.log(loss=loss.detach(), rebuilt=rebuilt.detach(), kl=kl.detach())
                hand.note(loss)
                if step % 50 == 0:
                    monitor.log_eval("val", loss=judge(data.val.inputs))
                if step == steps:
                    break
    return hand.outcome(test_loss=judge(data.test.inputs))
