"""A GAN that learns where points lie: on eight heaps around a circle.

python examples/gan.py
vitals run examples/gan.py
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--noise", type=int, default=8, help="numbers a point is made from")
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--print-every", type=int, default=250)
parser.add_argument("--out", type=Path, default=Path("gan.pt"))
args = parser.parse_args()


def network(inside: int, outside: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(inside, args.width),
        nn.LeakyReLU(0.2),
        nn.Linear(args.width, args.width),
        nn.LeakyReLU(0.2),
        nn.Linear(args.width, outside),
    )


def real(num: int) -> torch.Tensor:
    """Points on the heaps."""
    angle = torch.randint(8, (num, 1)) * (math.pi / 4)
    return torch.cat([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(num, 2)


torch.manual_seed(0)
generator = network(args.noise, 2)
discriminator = network(2, 1)
g_optimizer = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
yes, no = torch.ones(args.batch, 1), torch.zeros(args.batch, 1)

d_losses, g_losses = [], []
for step in range(1, args.steps + 1):
    fake = generator(torch.randn(args.batch, args.noise))
    d_loss = criterion(discriminator(real(args.batch)), yes)
    d_loss = d_loss + criterion(discriminator(fake.detach()), no)
    d_optimizer.zero_grad()
    d_loss.backward()
    d_optimizer.step()

    g_loss = criterion(discriminator(fake), yes)
    g_optimizer.zero_grad()
    g_loss.backward()
    g_optimizer.step()

    d_losses.append(d_loss.item())
    g_losses.append(g_loss.item())
    if step % args.print_every == 0:
        print(f"step {step}: discriminator {d_losses[-1]:.4f}, generator {g_losses[-1]:.4f}")

with torch.no_grad():
    radius = generator(torch.randn(1000, args.noise)).norm(dim=1)
print(f"its points lie {radius.mean():.2f} ± {radius.std():.2f} from the middle; the heaps, 1.00")
torch.save(
    {
        "model": generator.state_dict(),
        "discriminator": discriminator.state_dict(),
        "losses_discriminator": d_losses,
        "losses_generator": g_losses,
    },
    args.out,
)
