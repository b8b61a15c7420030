"""A regression that is learned exactly: the loss falls to 1e-8 and below."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import torchvitals
from torchvitals.testing.data import Part
from torchvitals.testing.healthy.hand import Hand
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.training import Batches


def regression(seed: int, folder: Path, steps: int | None) -> Outcome:
    """A linear target with noise of 1e-4: the loss falls by eight orders of magnitude."""
    steps = steps or 1200
    draw = torch.Generator().manual_seed(1000 + seed)
    inputs = torch.randn(3000, 8, generator=draw)
    mix = torch.randn(8, 2, generator=draw) / 3
    targets = inputs @ mix + 1e-4 * torch.randn(3000, 2, generator=draw)
    model = nn.Sequential(nn.Linear(8, 32), nn.Identity(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = LambdaLR(
        optimizer, lambda done: max(1e-3, (1 + math.cos(math.pi * min(done / steps, 1.0))) / 2)
    )
    hand = Hand(seed, steps)
    batches = Batches(Part(inputs[:2000], targets[:2000]), 64, seed)
    test_loss = math.nan
    with torchvitals.watch(model, optimizer, run=folder, every=5, total_steps=steps) as monitor:
        step = 0
        while step < steps:
            for x, y in monitor.data(batches):
                step += 1
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x), y)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                scheduler.step()
                monitor.log(loss=loss.detach())
                hand.note(loss)
                if step % 50 == 0 or step == steps:
                    model.eval()
                    with torch.no_grad():
                        test_loss = float(
                            nn.functional.mse_loss(model(inputs[2000:]), targets[2000:])
                        )
                    model.train()
                    monitor.log_eval("val", loss=test_loss)
                if step == steps:
                    break
    return hand.outcome(test_loss=test_loss)
