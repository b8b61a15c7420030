"""Two models, two optimizers; two terms of the critic's loss."""

import torch
from torch import nn


def train():
    torch.manual_seed(4)
    generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    for _ in range(240):
        critic_optimizer.zero_grad()
        on_real = criterion(critic(torch.randn(8, 2) + 2), ones)
        on_real.backward()
        fake = generator(torch.randn(8, 4))
        on_fake = criterion(critic(fake.detach()), zeros)
        on_fake.backward()
        critic_optimizer.step()
        generator_optimizer.zero_grad()
        loss = criterion(critic(fake), ones)
        loss.backward()
        generator_optimizer.step()
        print("loss_critic", (on_real.item() + on_fake.item()).hex())
        print("loss_generator", loss.item().hex())


train()
