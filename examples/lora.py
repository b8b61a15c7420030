"""Fine-tunes a classifier with LoRA: its weights stay, small matrices beside them learn.

The base is trained first if there is none yet; a real one would be downloaded.

python examples/lora.py
vitals run examples/lora.py
"""

import argparse
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--base", type=Path, default=Path("base.pt"))
parser.add_argument("--base-steps", type=int, default=1000)
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--rank", type=int, default=4)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("--print-every", type=int, default=100)
parser.add_argument("--out", type=Path, default=Path("lora.pt"))
args = parser.parse_args()


class LoRA(nn.Module):
    """A frozen linear layer and the product of two thin matrices."""

    def __init__(self, base: nn.Linear, rank: int, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        self.scale = alpha / rank
        nn.init.zeros_(self.up.weight)  # it begins as the base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The base's output, and what was learned since."""
        return self.base(x) + self.scale * self.up(self.down(x))


class Classifier(nn.Module):
    """Which of eight directions is the strongest."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(32, width)
        self.hidden1 = nn.Linear(width, width)
        self.hidden2 = nn.Linear(width, width)
        self.head = nn.Linear(width, 8)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.act(self.embed(x))
        x = self.act(self.hidden1(x))
        x = self.act(self.hidden2(x))
        return self.head(x)


def batch_of(directions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs, and which direction each follows most."""
    inputs = torch.randn(args.batch, 32)
    return inputs, (inputs @ directions).argmax(dim=1)


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, directions: torch.Tensor, steps: int
) -> list[float]:
    """An ordinary loop."""
    losses = []
    model.train()
    for step in range(1, steps + 1):
        inputs, targets = batch_of(directions)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % args.print_every == 0:
            print(f"step {step}: loss {losses[-1]:.4f}")
    return losses


torch.manual_seed(0)
known = torch.randn(32, 8)
wanted = known + 0.7 * torch.randn(32, 8)  # a related task

model = Classifier(args.width)
if args.base.exists():
    model.load_state_dict(torch.load(args.base))
else:
    print("training the base")
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), known, args.base_steps)
    torch.save(model.state_dict(), args.base)

model.hidden1 = LoRA(model.hidden1, args.rank)
model.hidden2 = LoRA(model.hidden2, args.rank)
for part in (model.embed, model.head):
    part.requires_grad_(False)
learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
print(f"fine-tuning {sum(p.numel() for p in learned)} numbers")
losses = train(model, torch.optim.AdamW(learned, lr=args.lr), wanted, args.steps)
torch.save({"model": model.state_dict(), "losses": losses}, args.out)
