"""REINFORCE with a baseline: balances a pole on a cart.

python examples/reinforce.py
vitals run examples/reinforce.py
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.distributions import Categorical

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--updates", type=int, default=200)
parser.add_argument("--carts", type=int, default=16, help="that are played at the same time")
parser.add_argument("--longest", type=int, default=200, help="moves of a game")
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--discount", type=float, default=0.99)
parser.add_argument("--print-every", type=int, default=20)
parser.add_argument("--out", type=Path, default=Path("reinforce.pt"))
args = parser.parse_args()


def move(state: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The carts, a fiftieth of a second later (Barto, Sutton and Anderson 1983)."""
    _, speed, angle, turn = state.unbind(1)
    push = torch.where(right == 1, 10.0, -10.0)
    pull = (push + 0.05 * turn.square() * angle.sin()) / 1.1
    bend = 9.8 * angle.sin() - angle.cos() * pull
    bend = bend / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
    gain = pull - 0.05 * bend * angle.cos() / 1.1
    return state + 0.02 * torch.stack([speed, gain, turn, bend], dim=1)


class Player(nn.Module):
    """What to do, and how many moves it expects to last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh())
        self.policy = nn.Linear(width, 2)
        self.value = nn.Linear(width, 1)

    def forward(self, state: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        """For a batch of carts."""
        seen = self.body(state)
        return Categorical(logits=self.policy(seen)), self.value(seen).squeeze(1)


def play(player: Player) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, moves, and whether the game was still on: (moves, carts, …)."""
    state = 0.1 * torch.rand(args.carts, 4) - 0.05
    on = torch.ones(args.carts, dtype=torch.bool)
    states, moves, alive = [], [], []
    while on.any() and len(states) < args.longest:
        with torch.no_grad():
            chosen = player(state)[0].sample()
        states.append(state)
        moves.append(chosen)
        alive.append(on)
        state = move(state, chosen)
        on = on & (state[:, 0].abs() < 2.4) & (state[:, 2].abs() < math.pi / 15)
    return torch.stack(states), torch.stack(moves), torch.stack(alive)


torch.manual_seed(0)
player = Player(args.width)
optimizer = torch.optim.Adam(player.parameters(), lr=args.lr)

losses = []
for update in range(1, args.updates + 1):
    states, moves, alive = play(player)
    returns = torch.zeros(alive.shape)
    ahead = torch.zeros(args.carts)
    for number in reversed(range(len(alive))):
        ahead = alive[number] * (1 + args.discount * ahead)
        returns[number] = ahead
    # Only what was played counts.
    states, moves, returns = states[alive], moves[alive], returns[alive]
    scaled = returns * (1 - args.discount)
    policy, expected = player(states)
    better = scaled - expected.detach()
    better = (better - better.mean()) / (better.std() + 1e-6)
    loss = -(policy.log_prob(moves) * better).mean()
    loss = loss + 0.5 * (expected - scaled).square().mean() - 0.01 * policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(player.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
    if update % args.print_every == 0:
        print(f"update {update}: {alive.sum().item() / args.carts:.1f} moves a game")
torch.save({"model": player.state_dict(), "losses": losses}, args.out)
