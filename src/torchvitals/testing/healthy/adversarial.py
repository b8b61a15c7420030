"""A small DCGAN on the made pictures: two optimizers, losses that need not fall."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import torchvitals
from torchvitals.testing.data import images
from torchvitals.testing.healthy.hand import Hand
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.training import Batches

NOISE = 16


def _generator(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.ConvTranspose2d(NOISE, 2 * width, 4),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        nn.Tanh(),
    )


def _critic(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 4),
        nn.Flatten(),
    )


def dcgan(seed: int, folder: Path, steps: int | None) -> Outcome:
    """Pictures from noise; the critic is a little ahead all the time."""
    steps = steps or 400
    width = 16 if seed % 2 else 24
    generator, critic = _generator(width), _critic(width)
    for model in (generator, critic):
        for module in model.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(module.weight, 0.0, 0.05)
    part = images(1000 + seed, 4000).train
    part = part._replace(inputs=(part.inputs / 4).clamp(-1, 1))
    makes = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judges = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.5, 0.999))
    hand = Hand(seed, steps)
    batches = Batches(part, 32, seed)
    with torchvitals.watch(
        {"generator": generator, "critic": critic}, [makes, judges],
        run=folder, every=5, total_steps=steps,
    ) as monitor:  # fmt: skip
        step = 0
        while step < steps:
            for real, _ in monitor.data(batches):
                step += 1
                fake = generator(torch.randn(len(real), NOISE, 1, 1))
                ones, zeros = torch.full((len(real), 1), 0.9), torch.zeros(len(real), 1)
                judges.zero_grad()
                seen = F.binary_cross_entropy_with_logits(critic(real), ones)
                seen = seen + F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros)
                seen.backward()  # type: ignore[no-untyped-call]
                judges.step()
                makes.zero_grad()
                fooled = F.binary_cross_entropy_with_logits(critic(fake), ones)
                fooled.backward()  # type: ignore[no-untyped-call]
                makes.step()
                monitor.log(generator_loss=fooled.detach(), critic_loss=seen.detach())
                hand.note(fooled)
                if step == steps:
                    break
    with torch.no_grad():
        fake = generator(torch.randn(256, NOISE, 1, 1))
    apart = abs(float(fake.mean() - part.inputs.mean())) + abs(
        float(fake.std() - part.inputs.std())
    )
    return hand.outcome(test_loss=apart)
